"""What names and ids of real traces mean: steps, calls, kernels, frames, modules, backward operators, captured graphs."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_traces import document, kernel, op, run_of
from tests.support.normalized import Normalizer

from magneton.schemas.errors import InputFormatError
from magneton.transforms.linking.steps import parse
from magneton.transforms.naming.frame_names import Place, module_class, module_instance, place
from magneton.transforms.naming.kernel_classes import kernel_class
from magneton.transforms.naming.launch_names import capture_step, launches_graph, leaves_activity

# --- steps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("execute_context_1(11)_generation_0(0)", ("vllm", None, "prefill", 1, 11, 0, 0)),
        ("execute_context_0(0)_generation_1(1)", ("vllm", None, "decode", 0, 0, 1, 1)),
        ("execute_context_1(888_788544)_generation_0(0)", ("vllm", None, "prefill", 1, 888, 0, 0)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            ("vllm", None, "mixed", 9, 8155, 37, 37),
        ),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            ("vllm", None, "decode", 0, 0, 32, 32),
        ),
        ("execute_new_2_cached_3", ("vllm", None, "mixed", 2, None, 3, None)),
        ("step[EXTEND bs=1 toks=16]", ("sglang", None, "prefill", 1, 16, 0, 0)),
        ("step[DECODE bs=4]", ("sglang", None, "decode", 0, 0, 4, 4)),
        ("step[TARGET_VERIFY bs=4 toks=8]", ("sglang", None, "decode", 0, 0, 4, None)),
        ("step[DRAFT_EXTEND bs=4]", ("sglang", None, "decode", None, None, None, None)),
        ("ProfilerStep#552", ("profiler", 552, None, None, None, None, None)),
    ],
)
def test_names_of_steps(name: str, fields: tuple[Any, ...]) -> None:
    mark = parse(name)
    assert mark is not None
    assert fields == (
        mark.dialect, mark.index, mark.phase, mark.context_requests, mark.context_tokens, mark.generation_requests,
        mark.generation_tokens,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_0(0)_generation_0(0)", "execute_32_context_0(sq0sk0)_generation_0(sq0sk0)", "capture_32_FULL", "step",
        "step[IDLE bs=0]", "nccl:all_reduce", "ProfilerStep", "## forward ##", "execute_context_1", "",
    ],
)  # fmt: skip
def test_names_that_are_no_steps(name: str) -> None:
    assert parse(name) is None


def test_steps_by_argument() -> None:
    mark = parse("train", '{"step_num":7}')
    assert mark is not None
    assert mark.index == 7
    assert parse("train", '{"step_num":"x"}') is None


@pytest.mark.parametrize(
    ("file", "steps"),
    [
        ("systems/samples/vllm/worker_rank0.pt.trace.json.gz", [("prefill", 11)] + [("decode", 1)] * 3),
        ("systems/samples/sglang/1795960714.93-TP-0-EXTEND.trace.json.gz", [("prefill", 11)]),
        ("systems/samples/sglang/1795960714.93-TP-0-DECODE.trace.json.gz", [("decode", 1)] * 2),
        ("traces/sglang/qwen3_8b_prefilldecode.json.gz", [("prefill", 15360)]),
        ("traces/vllm/prefilldecode_piecewise/replay.json.gz", [("mixed", 8155 + 37)]),
        ("traces/torch/b200_eager.json.gz", [("prefill", 888)]),
    ],
)
def test_steps_of_real_traces(file: str, steps: list[Any], shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / file)
    found = [(s["phase"], s["context_tokens"] + s["generation_tokens"]) for s in run.rows("steps")]
    assert found == steps
    inside = [o for o in run.rows("ops") if o["step_id"] is not None]
    assert len(inside) > 0.5 * len(run.rows("ops"))


def test_lengths_of_profiler_steps(shared: Path, normalized: Normalizer) -> None:
    for file, lengths in (
        ("hta_control", [75473, 76940, 76212, 76727, 78473, 81120]),
        ("hta_test", [100298, 122149, 166403, 81971, 107230, 166350]),
    ):
        steps = normalized(shared / f"traces/torch/{file}.json.gz").rows("steps")
        assert [s["index"] for s in steps] == list(range(1009, 1015))
        assert [s["dur_ns"] for s in steps] == [1000 * v for v in lengths]


def test_a_step_holds_what_other_threads_do_meanwhile_and_what_it_launched() -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 10, "dur": 100},
        op("mine", 20, 5),
        op("backward", 30, 5, tid=2),
        op("stranger", 30, 5, pid=9),
        op("late", 200, 5),
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 2,
            "ts": 31,
            "dur": 1,
            "args": {"correlation": 5},
        },
        kernel("k", 500, args={"correlation": 5}),
    ]
    run = run_of(document(events))
    (step,) = run.rows("steps")
    found = {r["name"]: r["step_id"] for t in ("ops", "launches", "kernels") for r in run.rows(t)}
    assert {n for n, s in found.items() if s == step["step_id"]} == {"mine", "backward", "cudaLaunchKernel", "k"}


# --- names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1", "gemm"),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
            "gemm",
        ),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>", "gemm"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "gemm"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_biasM_bN_tma_tmaOpt", "gemm"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "gemm"),
        ("void splitKreduce_kernel<32, 16, int, float>", "gemm"),
        ("triton_tem_fused_addmm_3", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64> >", "attention"),
        ("attn_fwd", "attention"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernel", "attention"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", "attention"),
        ("kernel_unified_attention_2d", "attention"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", "convolution"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "convolution"),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", "convolution"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>", "normalization"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwd", "normalization"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "normalization"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "normalization"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>", "softmax"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "elementwise"),
        ("triton_poi_fused__to_copy_1", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >", "elementwise"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "elementwise"),
        ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >", "reduction"),
        ("triton_per_fused__to_copy_addmm_mean_pow_view_7", "reduction"),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
            "copy",
        ),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", "copy"),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>", "copy"),
        ("batched_transpose_16x32_half", "copy"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "collective"),
        ("split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1", "embedding"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>", "embedding"),
        ("moe_sorting_kernel<BF16>", "moe"),
        ("multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >", "optimizer"),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long> >", "sort"),
        ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float>", "rng"),
        ("__amd_rocclr_copyBuffer", "memcpy"),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy"),
        ("Memset (Device)", "memset"),
        ("k", "other"),
        ("", "other"),
    ],
)
def test_classes_of_kernels(name: str, expected: str) -> None:
    category = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name[:6], "kernel")
    assert kernel_class(name, category) == expected


def test_most_kernel_time_of_real_traces_has_a_class(shared: Path, normalized: Normalizer) -> None:
    for file in (
        "torch_infer_h100_mi300/qwen1.5_0.5b_mi300",
        "torch/b200_eager",
        "torch/hta_control",
        "vllm/decode_full/replay",
    ):
        rows = normalized(shared / f"traces/{file}.json.gz").rows("kernels")
        known = sum(k["dur_ns"] for k in rows if k["kernel_class"] != "other")
        assert known > 0.95 * sum(k["dur_ns"] for k in rows)


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel",
        "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipExtLaunchKernel", "hipGraphLaunch", "cudaGraphLaunch", "cudaMemcpy",
        "cudaMemcpyAsync", "hipMemcpyWithStream", "cudaMemsetAsync", "hipMemsetAsync", "cuMemcpyHtoDAsync_v2",
    ],
)  # fmt: skip
def test_calls_that_leave_an_activity(name: str) -> None:
    assert leaves_activity(name)
    assert launches_graph(name) == name.endswith("GraphLaunch")
    assert capture_step(name) == 0


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventRecord", "cudaMalloc", "cudaFuncGetAttributes", "cudaLaunchHostFunc",
        "hipPointerGetAttribute", "INVALID", "", "cudaStreamWaitEvent", "cudaOccupancyMaxActiveBlocksPerMultiprocessor", "hipGraphInstantiate",
    ],
)  # fmt: skip
def test_calls_that_leave_none(name: str) -> None:
    assert not leaves_activity(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.py(12): main", Place("train.py", 12, "main")),
        (r"C:\Program Files (x86)\a.py(3): <lambda>", Place(r"C:\Program Files (x86)\a.py", 3, "<lambda>")),
        ("a(1).py(2): f", Place("a(1).py", 2, "f")),
        ("<string>(1): __init__", Place("<string>", 1, "__init__")),
        ("<built-in method relu of type object at 0x7f00aa>", Place()),
        ("nn.Module: Linear_3", Place()),
        ("", Place()),
        ("file.py(99999999999999999999): f", Place()),
    ],
)
def test_places_of_frames(name: str, expected: Place) -> None:
    assert place(name) == expected


def test_module_names() -> None:
    assert module_instance("nn.Module: GPT2Block_11") == "GPT2Block_11"
    assert module_instance("modeling.py(3): forward") is None
    assert [module_class(i) for i in ("GPT2Block_11", "Conv2d_0", "T5Block", "My_Net_7")] == [
        "GPT2Block",
        "Conv2d",
        "T5Block",
        "My_Net",
    ]


# --- who belongs to whom -----------------------------------------------------------------------------------------------------


def test_every_backward_operator_finds_its_forward_operator(shared: Path, normalized: Normalizer) -> None:
    for file in (
        "torch/mi300x_resnet_act_checkpoint_rank0",
        "torch/a100_nccl_rank0",
        "torch/hta_control",
        "torch/mi250_minitoy_train",
    ):
        ops = {o["op_id"]: o for o in normalized(shared / f"traces/{file}.json.gz").rows("ops")}
        backward = [o for o in ops.values() if o["fwd_thread_id"]]
        assert backward
        for o in backward:
            forward = ops[o["forward_op_id"]]
            assert forward["sequence_number"] == o["sequence_number"]
            assert not forward["fwd_thread_id"]
            assert forward["ts_ns"] <= o["ts_ns"]
    pairs = {
        (ops[o["forward_op_id"]]["name"], o["name"])
        for ops in [{o["op_id"]: o for o in normalized(shared / "traces/torch/a100_nccl_rank0.json.gz").rows("ops")}]
        for o in ops.values()
        if o["forward_op_id"] is not None
    }
    assert ("aten::convolution", "ConvolutionBackward0") in pairs


def test_backward_work_belongs_to_the_module_of_its_forward_work(shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces/torch/mi300x_resnet_act_checkpoint_rank0.json.gz")
    classes = {m["module_id"]: m["class_name"] for m in run.rows("modules")}
    ops = {o["op_id"]: o for o in run.rows("ops")}
    linked = [k for k in run.rows("kernels") if k["op_id"] is not None]
    convolutions = [k for k in linked if ops[k["op_id"]]["name"] == "aten::convolution_backward"]
    assert convolutions
    assert all(classes[k["module_id"]] == "Conv2d" for k in convolutions)


def test_arrows_alone_link_backward_to_forward() -> None:
    events = [
        {
            "ph": "X",
            "cat": "python_function",
            "name": "nn.Module: Linear_0",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 50,
            "args": {"Python id": 1},
        },
        op("fwd", 10, 10),
        op("bwd", 1000, 10, tid=2),
        op("inner", 1002, 5, tid=2),
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 9, "pid": 1, "tid": 1, "ts": 10},
        {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 9, "pid": 1, "tid": 2, "ts": 1000, "bp": "e"},
    ]
    run = run_of(document(events))
    ops = run.by_name("ops")
    (module,) = run.rows("modules")
    assert ops["bwd"]["forward_op_id"] == ops["fwd"]["op_id"]
    assert [ops[n]["module_id"] for n in ("fwd", "bwd", "inner")] == [module["module_id"]] * 3
    assert [ops[n]["module_call"] for n in ("fwd", "bwd", "inner")] == [run.rows("frames")[0]["frame_id"]] * 3


def test_modules_are_places_in_a_tree(shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "systems/samples/transformers/gpt2_eager.json.gz")
    modules = {m["module_id"]: m for m in run.rows("modules")}
    for m in modules.values():
        parent = modules.get(m["parent_id"])
        above = "" if parent is None else parent["path"] + "/"
        assert m["path"] == above + m["name"]
        assert m["depth"] == m["path"].count("/")
        assert m["class_name"] == module_class(m["name"])
    assert sum(m["n_calls"] for m in modules.values()) == sum(f["module_id"] is not None for f in run.rows("frames"))
    assert any(m["path"].count("/") >= 3 for m in modules.values())


def test_launches_into_a_graph_under_capture_expect_nothing(shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces/vllm/decode_full/capture.json.gz")
    launches = [la for la in run.rows("launches") if leaves_activity(la["name"])]
    expecting = sum(bool(la["expects_device_activity"]) for la in launches)
    assert expecting == len(run.rows("kernels"))
    assert len(launches) > 10 * expecting
    assert "gpu_records_missing" not in run.warnings()


def test_frames_follow_python_ids_even_where_clocks_disagree() -> None:
    def frame(name: str, ident: int, parent: int | None, ts: float, dur: float) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": "python_function",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": dur,
            "args": {"Python id": ident, "Python parent id": parent},
        }

    events = [
        frame("main", 1, None, 10, 100),
        frame("child", 2, 1, 9, 5),  # starts before its caller
        frame("other", 3, 1, 50, 500),  # ends after it
        frame("orphan", 4, 77, 60, 1),  # whose caller was not recorded
    ]
    run = run_of(document(events))
    found = run.by_name("frames")
    assert [found[n]["parent_id"] for n in ("main", "child", "other", "orphan")] == [
        None,
        found["main"]["frame_id"],
        found["main"]["frame_id"],
        None,
    ]


def test_processes_of_one_file_own_their_devices() -> None:
    events: list[dict[str, Any]] = []
    for number, (pid, device) in enumerate([(10, 3), (20, 1), (30, 2)]):
        events += [
            op(f"op{pid}", 100, 50, pid=pid, tid=pid),
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": pid,
                "tid": pid,
                "ts": 110,
                "dur": 1,
                "args": {"correlation": 5},
            },
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": pid,
                "tid": pid,
                "ts": 120,
                "dur": 1,
                "args": {"correlation": 100 + number},
            },
            kernel(f"shared{pid}", 200, pid=device, args={"correlation": 5, "device": device}),
            kernel(f"own{pid}", 300, pid=device, args={"correlation": 100 + number, "device": device}),
        ]
    run = run_of(document(events))
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")}
    assert {k["name"]: ops[k["op_id"]] for k in run.rows("kernels")} == {
        f"{what}{pid}": f"op{pid}" for what in ("shared", "own") for pid in (10, 20, 30)
    }


def test_external_ids_link_what_has_no_launch_unless_they_copy_the_correlation() -> None:
    def events(external: int) -> list[dict[str, Any]]:
        return [
            op("a", 1, 5, args={"External id": 7}),
            op("b", 10, 5, args={"External id": 8}),
            kernel("k", 50, args={"correlation": 8, "External id": external}),
        ]

    run = run_of(document(events(7)))
    (k,) = run.rows("kernels")
    assert (k["link"], k["op_id"]) == ("external_id", run.by_name("ops")["a"]["op_id"])
    run = run_of(document(events(8)))
    (k,) = run.rows("kernels")
    assert (k["link"], k["op_id"], k["external_id"]) == (None, None, None)
    assert "correlation_as_external_id" in run.warnings()


def test_memory_and_counters_become_samples() -> None:
    events = [
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "args": {"Total Allocated": 8, "Total Reserved": 16, "Bytes": -4, "Device Type": 1, "Device Id": 0},
        },
        {"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "tid": 0, "ts": 2, "args": {"a": 1, "b": 2.5, "c": "x"}},
    ]
    run = run_of(document(events))
    found = {(c["name"], c["series"]): (c["value"], c["unit"], c["device"]) for c in run.rows("counters")}
    assert found == {
        ("[memory]", "Total Allocated"): (8, "bytes", 0),
        ("[memory]", "Total Reserved"): (16, "bytes", 0),
        ("[memory]", "Bytes"): (-4, "bytes", 0),
        ("GPU 0 Utilization", "a"): (1, None, None),
        ("GPU 0 Utilization", "b"): (2.5, None, None),
        ("GPU 0 Utilization", "c"): (None, None, None),
    }
    assert run.rows("captures")[0]["n_kept"] == 2


def test_operators_that_overlap_are_worth_a_word() -> None:
    assert run_of(document([op("a", 0, 100), op("b", 50, 100)])).warnings() == {"overlapping_slices": 1}
    assert run_of(document([op("a", 0, 100), op("b", 99.5, 1)])).warnings() == {}


# --- the recording ----------------------------------------------------------------------------------------------------------


def test_the_front_end_of_a_server_has_frames_only(shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "systems/samples/vllm/frontend.async_llm.pt.trace.json.gz")
    assert len(run.rows("frames")) == 26478
    assert run.manifest.system.name == "vllm"
    assert run.manifest.system.versions["vllm"] == "0.32.0"


def test_manifest_names_system_and_devices_but_no_host(shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces/torch_infer_h100_mi300/qwen1.5_0.5b_h100.json.gz")
    assert run.manifest.devices[0].name == "NVIDIA H100 80GB HBM3"
    assert run.manifest.system.versions["cuda_runtime"] == "12040"
    run = normalized(shared / "systems/samples/torch/mlp_full.json.gz")
    text = (run.path / "manifest.json").read_text() + json.dumps(run.rows("captures"))
    assert "host_name" not in text
    assert '"vm"' not in text


def test_raw_files_are_kept_as_they_were(shared: Path, tmp_path: Path) -> None:
    from magneton.transforms.normalize import normalize

    file = shared / "systems/samples/torch/mlp_full.json.gz"
    manifest = normalize([file], tmp_path / "run")
    (primary,) = [f for f in manifest.files if f.role == "primary"]
    assert primary.path == f"raw/profile/rank0/{file.name}"
    assert (tmp_path / "run" / primary.path).read_bytes() == file.read_bytes()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["manifest.json", "raw", "tables"]


def test_a_zip_of_one_file_is_read_and_of_several_refused() -> None:
    def packed(*names: str) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(name, document([kernel()]))
        return buffer.getvalue()

    assert len(run_of(packed("a.json")).rows("kernels")) == 1
    with pytest.raises(InputFormatError, match="2 files"):
        run_of(packed("a.json", "b.json"))
