"""The dataflow that the values recorder sees: identities, versions, aliases, and what operators do by their schema."""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

from tests.value_capture import Seen  # noqa: E402

from magneton.collectors.values import capture_values, current, mark, perturbed, record_values  # noqa: E402


def randn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(fn: Any, *inputs: Any, **options: Any) -> Seen:
    return Seen(record_values(fn, inputs, **options))


# -- what runs


def test_an_operator_with_a_kernel_of_its_own_is_not_taken_apart() -> None:
    x = randn(4, 5)
    got = seen(torch.ops.aten.silu_backward, randn(4, 5, seed=1), x)
    assert got.names == ["silu_backward"]

    def inferred(at: Any, weight: Any) -> Any:
        with torch.inference_mode():
            return torch.nn.functional.linear(at, weight)

    assert "linear" not in seen(inferred, x, randn(3, 5)).names


# -- identity, views


def test_views_of_the_same_elements_are_one_value_with_several_arrangements() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        return y.view(6, 20).t().relu()

    got = seen(program, randn(2, 3, 20))
    made = got.one("add").writes
    assert got.one("view").writes == got.one("t").writes == made
    assert got.one("relu").reads == made
    assert got.keys(made[0]) == ["2x3x20", "flat:120", "6x20", "flat:120"]
    assert got.one("view").flags == {"view", "move"}
    assert got.tensors[made[0]]["dims"] == [2, 3, 20]


def test_uses_carry_the_geometry_of_the_very_view() -> None:
    got = seen(lambda x: (x + 1)[1:].t() * 2, randn(4, 5))
    uses = [u for u in got.capture.uses.to_pylist() if u["op_id"] == got.one("mul").op_id]
    assert (uses[0]["dims"], uses[0]["strides"], uses[0]["storage_offset"]) == ([5, 3], [1, 5], 5)
    assert (uses[0]["itemsize"], uses[0]["device"], uses[0]["dtype"]) == (4, "cpu", "float32")


def test_a_view_that_selects_part_of_a_value_defines_a_value() -> None:
    def program(x: Any) -> Any:
        q, k = (x * 2).split(8, dim=1)
        return q @ k.t()

    got = seen(program, randn(6, 16))
    split = got.one("split")
    assert len(split.writes) == 2
    assert split.writes != split.reads
    assert split.flags == {"view", "move"}
    assert got.one("mm").reads == split.writes


def test_an_expanded_view_is_a_value_of_its_own() -> None:
    got = seen(lambda x: (x + 1).expand(4, 5, 6) * 2, randn(1, 5, 6))
    expand = got.one("expand")
    assert expand.reads != expand.writes
    assert got.tensors[expand.writes[0]]["numel"] == 120


def test_views_made_outside_of_operators_are_the_same_value() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        return y.detach() * 2 + y.data * 3

    got = seen(program, randn(4, 8))
    first, second = got.all("mul")
    assert first.reads == second.reads == got.all("add")[0].writes


def test_the_same_bits_as_another_type_or_conjugated_are_another_value() -> None:
    def program(x: Any) -> Any:
        c = torch.view_as_complex(x + 1)
        return c * c.conj(), (x + 2).view(torch.int32) + 1

    got = seen(program, randn(32, 2))
    product = got.one("mul")
    assert product.reads[0] != product.reads[1]
    first = got.all("add")[0]
    assert got.one("view_as_complex").writes != first.writes
    assert got.all("add")[2].reads != got.all("add")[1].writes


# -- memory


def test_memory_that_is_used_again_is_not_taken_for_the_old() -> None:
    addresses = set()

    def program(x: Any) -> Any:
        total = x
        for _ in range(50):
            y = total * 1.5
            addresses.add(y.data_ptr())
            total = y.sum() + x
            del y
            gc.collect()
        return total

    got = seen(program, randn(64, 64))
    products = got.all("mul")
    assert len(addresses) < 50, "the allocator did not use memory again: the test shows nothing"
    assert len({op.writes[0] for op in products}) == 50
    storages = [got.tensors[op.writes[0]]["storage_id"] for op in products]
    assert len(set(storages)) == 50
    for product, total in zip(products, got.all("sum"), strict=True):
        assert total.reads == product.writes


def test_memory_is_released_while_recording() -> None:
    import weakref

    alive = []

    def program(x: Any) -> Any:
        for _ in range(5):
            y = x * 2
            alive.append(weakref.ref(y.untyped_storage()))
            x = y + 1
        return x

    record_values(program, (randn(100),))
    gc.collect()
    assert not [ref for ref in alive if ref() is not None]


# -- writes


def test_an_in_place_write_keeps_the_earlier_value() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        before = y.sum()
        y.add_(1)
        return before + y.sum()

    got = seen(program, randn(8, 8))
    old, new = got.one("mul").writes[0], got.one("add_").writes[0]
    assert old != new
    first, second = got.all("sum")
    assert first.reads == [old]
    assert second.reads == [new]
    assert got.one("add_").reads == [old]
    assert got.one("add_").flags == {"inplace"}
    assert got.tensors[new]["version"] == got.tensors[old]["version"] + 1
    assert got.tensors[new]["storage_id"] == got.tensors[old]["storage_id"]
    assert got.tensors[new]["mean"] == pytest.approx(got.tensors[old]["mean"] + 1)


def test_a_write_to_a_view_is_seen_through_the_base_and_through_overlapping_views() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        top, bottom, middle = y[:4], y[4:], y[2:6]
        top.mul_(3)
        return bottom.exp(), middle.sin(), y.cos()

    x = randn(8, 8)
    got = seen(program, x)
    made, written = got.one("mul").writes[0], got.one("mul_").writes[0]
    views = [op.writes[0] for op in got.all("slice")]
    # What does not overlap is still the old value.
    assert got.one("exp").reads == [views[1]]
    middle, whole = got.all("_assemble")
    assert middle.reads == [written, views[2]]
    assert got.one("sin").reads == middle.writes
    assert middle.flags == {"move", "assemble"}
    assert set(whole.reads) == {written, made}
    assert got.one("cos").reads == whole.writes
    expected = (x * 2).clone()
    expected[:4] *= 3
    assert got.tensors[whole.writes[0]]["mean"] == pytest.approx(float(expected.mean()), rel=1e-5)
    assert got.tensors[middle.writes[0]]["mean"] == pytest.approx(float(expected[2:6].mean()), rel=1e-5)


def test_a_base_written_whole_leaves_nothing_of_the_old_value() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        part = y[1]
        y.copy_(x)
        return part.exp(), y.sin()

    got = seen(program, randn(4, 8))
    copied = got.one("copy_")
    assert copied.reads == [0], "what is overwritten is not read"
    assert got.one("_assemble").reads == copied.writes
    assert got.one("sin").reads == copied.writes


def test_writes_that_together_cover_all_leave_nothing_of_the_old_value() -> None:
    def program(x: Any) -> Any:
        y = torch.zeros(4, 8)
        y[:2] = x
        y[2:] = x + 1
        return y.exp()

    got = seen(program, randn(2, 8))
    assert set(got.one("_assemble").reads) == {op.writes[0] for op in got.all("copy_")}


def test_a_cache_that_is_filled_row_by_row() -> None:
    cache = torch.zeros(1, 6, 8)

    def program(x: Any) -> Any:
        for step in range(3):
            cache[:, step] = x * (step + 1)
            total = cache[:, : step + 1].sum()
        return total

    got = seen(program, randn(1, 8))
    for step, (total, product) in enumerate(zip(got.all("sum"), got.all("mul"), strict=True)):
        assert got.tensors[total.reads[0]]["numel"] == 8 * (step + 1)
        assert product.writes
    assert "uninitialized" not in {t["why_no_values"] for t in got.tensors.values()}


def test_memory_that_was_never_filled_has_no_values() -> None:
    def program(x: Any) -> Any:
        y = torch.empty(4, 8)
        y[:2] = x
        filled = y[:2].exp()
        return filled, y.sin(), torch.empty(3).normal_() + 1

    got = seen(program, randn(2, 8))
    empty = got.all("empty")[0]
    assert got.tensors[empty.writes[0]]["why_no_values"] == "uninitialized"
    assert got.tensors[empty.writes[0]]["mean"] is None
    assert got.tensors[got.one("exp").reads[0]]["why_no_values"] is None
    assert got.tensors[got.one("sin").reads[0]]["why_no_values"] == "uninitialized"
    assert got.tensors[got.one("normal_").writes[0]]["why_no_values"] is None


def test_results_written_to_an_argument() -> None:
    def program(x: Any) -> Any:
        out = torch.empty(4, 4)
        torch.mm(x, x, out=out)
        return out + 1

    got = seen(program, randn(4, 4))
    product = got.one("mm")
    assert product.reads == [0, 0]
    assert product.writes == got.one("add").reads
    assert got.tensors[product.writes[0]]["why_no_values"] is None


def test_statistics_that_a_batch_norm_updates_get_a_new_version() -> None:
    norm = torch.nn.BatchNorm1d(8).train()
    with torch.no_grad():
        got = seen(lambda x: norm(norm(x)), randn(16, 8), parameters=[*norm.parameters(), *norm.buffers()])
    first, second = got.all("native_batch_norm")
    assert len(first.writes) == 5
    assert first.writes[3:] == second.reads[3:5], "running statistics of the first call are what the second reads"
    assert got.tensors[first.reads[3]]["role"] == "parameter"
    assert not got.tensors[second.reads[3]]["constant"]


def test_foreach_operators_write_every_tensor_of_their_list() -> None:
    def program(x: Any) -> Any:
        parts = [x * 1, x * 2]
        torch._foreach_add_(parts, 1.0)
        return parts[0] + parts[1]

    got = seen(program, randn(4, 4))
    added = got.one("_foreach_add_")
    assert len(added.writes) == 2
    assert got.one("add").reads == added.writes
    elements = [u["element"] for u in got.capture.uses.to_pylist() if u["op_id"] == added.op_id]
    assert elements[:2] == [0, 1]


# -- what operators do


def test_flags_follow_the_schema() -> None:
    def program(x: Any) -> Any:
        y = x.transpose(0, 1)
        z = y.contiguous()
        return torch.cat([z + 0, z.clone()]), z.bfloat16().float(), z.to(torch.int64)

    got = seen(program, randn(4, 6))
    first, second = got.all("clone")
    assert first.flags == second.flags == {"move", "copy"}
    assert got.one("cat").flags == {"move"}
    assert got.one("add").flags == set(), "x + 0 computes"
    assert [op.flags for op in got.all("_to_copy")] == [{"move", "copy"}, {"move", "copy"}, {"move"}]


def test_constants_are_what_derives_from_parameters_and_literals() -> None:
    weight = torch.nn.Parameter(randn(8, 8))
    table = randn(4, 8)

    def program(x: Any) -> Any:
        a = weight.exp() + torch.arange(8.0)
        b = table * 2
        noise = torch.rand(8)
        return x @ a, b + 1, noise * 3

    got = seen(program, randn(4, 8), parameters=[weight])
    constant = {op.name: "constant" in op.flags for op in got.ops}
    assert constant["exp"] and constant["arange"]
    assert not constant["mm"]
    assert not constant["rand"], "what is drawn is neither a literal nor a parameter"
    assert [("constant" in op.flags) for op in got.all("mul")] == [True, False]
    roles = {t["role"] for t in got.tensors.values()}
    assert roles == {"input", "parameter", "output", None}
    assert [t["constant"] for t in got.tensors.values() if t["role"] == "parameter"] == [True]
    assert sum(t["role"] == "output" for t in got.tensors.values()) == 3


def test_without_known_inputs_what_was_there_counts_as_input() -> None:
    linear, x, table = torch.nn.Linear(4, 4), randn(2, 4), randn(2, 4)
    got = Seen(capture_values(lambda: linear(x) + table, parameters=linear.parameters()))
    assert "constant" not in got.one("add").flags
    assert "constant" in got.one("t").flags
    assert got.tensors[got.one("add").reads[1]]["role"] is None


def test_precision_is_the_coarsest_type_upstream() -> None:
    def program(x: Any, ids: Any) -> Any:
        y = x.bfloat16().float() + 1
        return y * x, x + 1, ids + 1, y.argmax(), x.half() @ x.half().t()

    got = seen(program, randn(4, 4), torch.arange(4))
    precision = [got.tensors[op.writes[0]]["precision"] for op in (*got.all("mul"), *got.all("add")[1:])]
    assert precision == ["bfloat16", "float32", None]
    assert got.tensors[got.one("argmax").writes[0]]["precision"] == "bfloat16"
    assert got.tensors[got.one("mm").writes[0]]["precision"] == "float16"


def test_precision_follows_the_setting_for_products() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        got = seen(lambda x: (x @ x) + 1, randn(4, 4))
    finally:
        torch.set_float32_matmul_precision(before)
    assert got.tensors[got.one("mm").writes[0]]["precision"] == "bfloat16"
    assert got.tensors[got.one("add").writes[0]]["precision"] == "bfloat16"
    assert got.tensors[got.one("mm").writes[0]]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: x.to_sparse(), "sparse"),
        (lambda x: x.to_sparse_csr(), "sparse"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized"),
        (lambda x: x.to_mkldnn(), "opaque"),
        (lambda x: x.to("meta"), "meta"),
        (lambda x: torch.tensor(0x7F0012345678), "opaque"),
        (lambda x: x[:0], "empty"),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), "nested"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_cannot_be_read_is_recorded_without_values(make: Any, why: str) -> None:
    def program(x: Any) -> Any:
        made = make(x)
        return made, (made.dequantize() if made.is_quantized else made.clone()), x + 1

    got = seen(program, randn(4, 4))
    assert why in {t["why_no_values"] for t in got.tensors.values()}
    unread = [t for t in got.tensors.values() if t["why_no_values"] == why]
    assert all(t["mean"] is None and t["sketches"] is None for t in unread)
    assert got.all("add"), "the program went on"


def test_sparse_tensors_flow() -> None:
    got = seen(lambda x: torch.sparse.mm(x.to_sparse(), x), torch.eye(4))
    made = next(t for t in got.tensors.values() if t["why_no_values"] == "sparse")
    readers = [op for op in got.ops if made["tensor_id"] in op.reads]
    assert readers


# -- modes


def names(got: Seen) -> list[str]:
    return [op.name for op in got.ops if op.name != "detach"]


def test_inference_mode_shows_the_same_operators() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1).eval()
    x = randn(2, 5, 16)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)

    def program(x: Any) -> Any:
        y = torch.nn.functional.linear(x, layer.linear1.weight, layer.linear1.bias)
        y = torch.nn.functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])
        return layer(x), y.reshape(-1), torch.dropout(x, 0.5, False)

    with torch.no_grad():
        plain = seen(program, x)
    with torch.inference_mode():
        inference = seen(program, x)
    assert names(inference) == names(plain)
    assert "addmm" in names(inference)
    assert "_transformer_encoder_layer_fwd" in names(plain), "recording switched the fused path off"
    assert torch.equal(inference.capture.outputs[0], plain.capture.outputs[0])


def test_autocast() -> None:
    linear = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        got = seen(lambda x: linear(x) + x, randn(4, 8))
    product = got.one("addmm")
    assert got.tensors[product.writes[0]]["dtype"] == "bfloat16"
    assert got.tensors[got.all("add")[-1].writes[0]]["precision"] == "bfloat16"
    x = got.tensors[0]
    assert x["std"] == pytest.approx(float(randn(4, 8).std(correction=0)), rel=1e-6)


def test_compiled_regions_are_looked_into_eagerly_and_said_so() -> None:
    compiled = torch.compile(lambda x: (x * 2).relu() + 1, backend="eager", fullgraph=True)
    capture = record_values(lambda x: compiled(x).sum(), (randn(4, 4),))
    got = Seen(capture)
    assert got.names == ["mul", "relu", "add", "sum"]
    inside = [json.loads(op.row["attributes"] or "{}").get("compiled", False) for op in got.ops]
    assert inside == [True, True, True, False]
    assert capture.notes == [
        "3 operators of the values capture lie in regions under torch.compile; they were looked into eagerly, while the "
        "profile times the compiled code."
    ]
    x = randn(4, 4)
    assert torch.equal(compiled(x), (x * 2).relu() + 1), "compiling still works afterwards"


def test_higher_order_operators_are_one_call() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = randn(1, 2, 16, 16)
    got = seen(lambda q: flex_attention(q, q, q) + 1, q)
    assert got.ops[-1].name == "add"


# -- training


def training() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def test_a_training_step_has_its_backward_and_its_update() -> None:
    model, _, step = training()
    capture = record_values(step, (randn(5, 8), randn(5, 4, seed=1)), parameters=list(model.parameters()))
    got = Seen(capture)
    assert "gelu_backward" in got.names
    for op in got.ops:
        assert ("backward" in op.flags) == (op.name.endswith("_backward") or "backward" in op.flags)
    backward = [op for op in got.ops if "backward" in op.flags]
    optimizer = [op for op in got.ops if "optimizer" in op.flags]
    assert {"gelu_backward", "mse_loss_backward", "mm"} <= {op.name for op in backward}
    assert {"addcdiv_", "lerp_"} <= {op.name for op in optimizer}
    assert not [op for op in got.ops if {"backward", "optimizer"} <= op.flags]
    assert "move" not in got.all("addcdiv_")[0].flags
    # Gradients belong to the module of their forward operator.
    (gelu,) = got.all("gelu_backward")
    assert got.modules[gelu.row["module_id"]].endswith("GELU_0")
    assert got.ops[gelu.row["forward_op_id"]].name == "gelu"
    # The update reads the gradient that backward made, and the parameter has a new value.
    updated = [got.tensors[op.writes[0]] for op in got.all("addcdiv_")]
    assert all(not t["constant"] for t in updated)
    assert {t["version"] for t in updated} == {2}, "decay, then update"
    gradients = {w for op in backward for w in op.writes}
    assert any(gradients & set(op.reads) for op in optimizer)


def test_training_is_not_changed_by_recording() -> None:
    results = []
    for record in (False, True):
        model, _, step = training()
        x, y = randn(5, 8), randn(5, 4, seed=1)
        for _ in range(3):
            loss = record_values(step, (x, y), parameters=list(model.parameters())).outputs if record else step(x, y)
        results.append([loss.detach(), *(p.detach() for p in model.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


# -- recording leaves no trace


def test_results_are_bitwise_those_of_a_run_that_is_not_recorded() -> None:
    def program(x: Any) -> Any:
        y = torch.nn.functional.dropout(x, 0.3) @ torch.rand(16, 16)
        y[2:5].mul_(3)
        return y.softmax(-1), torch.randn(4), y.half().sum()

    torch.manual_seed(3)
    plain = program(randn(8, 16))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    recorded = record_values(program, (randn(8, 16),)).outputs
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(3)
    again = record_values(program, (randn(8, 16),), second_inputs=(randn(8, 16, seed=5),)).outputs
    assert torch.equal(torch.get_rng_state(), after)
    for one, two, three in zip(plain, recorded, again, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_no_hooks_stay_behind() -> None:
    call = torch.nn.Module.__call__
    linear = torch.nn.Linear(4, 4)
    stance = torch._dynamo.eval_frame._stance.stance
    record_values(linear, (randn(2, 4),))
    with pytest.raises(ZeroDivisionError):
        record_values(lambda x: linear(x) / (1 // 0), (randn(2, 4),))
    assert torch.nn.Module.__call__ is call
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._dynamo.eval_frame._stance.stance == stance
    assert current() is None
    assert not linear._forward_hooks
    assert not linear._forward_pre_hooks


def test_a_program_that_fails_leaves_what_was_recorded() -> None:
    def program(x: Any) -> Any:
        x * 2
        raise KeyError("secret")

    x = randn(4, 4)
    capture = capture_values(lambda: program(x), inputs=(x,))
    assert isinstance(capture.error, KeyError)
    assert Seen(capture).names == ["mul"]
    with pytest.raises(KeyError):
        record_values(program, (x,))


# -- places


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.act = torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        return x + self.act(self.inner(x))


def test_modules_are_named_by_class_and_by_attribute() -> None:
    model = torch.nn.Sequential(Block(), Block())
    with torch.no_grad():
        capture = record_values(model, (randn(2, 8),))
    got = Seen(capture)
    products = got.all("addmm")
    assert [got.modules[op.row["module_id"]] for op in products] == [
        "Sequential_0/Block_0/Linear_0",
        "Sequential_0/Block_1/Linear_1",
    ]
    assert [json.loads(op.row["attributes"])["module_path"] for op in products] == ["0.inner", "1.inner"]
    assert [json.loads(op.row["attributes"])["overload"] for op in got.all("add")] == ["Tensor", "Tensor"]
    assert capture.boundaries["1.act"] == [tuple(got.all("relu")[1].writes)]
    assert capture.boundaries[""] == [tuple(got.all("add")[1].writes)]
    assert capture.modules.column("n_calls").to_pylist() == [1] * 7


def test_frames_are_the_programs_own_lines() -> None:
    def helper(x: Any) -> Any:
        return x * 2

    def program(x: Any) -> Any:
        return helper(x) + helper(x)

    got = seen(program, randn(2, 2))
    first, second = got.all("mul")
    inner = got.frames[first.row["frame_id"]]
    assert (inner["file"], inner["function"]) == ("tests/test_values_torch.py", "helper")
    outer = got.frames[inner["parent_id"]]
    assert outer["function"] == "program"
    assert got.frames[second.row["frame_id"]]["parent_id"] == inner["parent_id"], "one line, called twice on one line"
    assert not any("magneton/collectors" in f["file"] or f["file"].startswith("torch/") for f in got.frames.values())


def test_marks_and_ids_while_recording() -> None:
    ids = []

    def program(x: Any) -> Any:
        y = mark("product", x * 2)
        recorder = current()
        assert recorder is not None
        ids.append(recorder.tensor_id(y.view(-1)))
        return y + 1

    capture = record_values(program, (randn(4, 4),))
    made = Seen(capture).one("mul").writes[0]
    assert capture.marks == [("product", made)]
    assert ids == [made]
    assert mark("nobody listens", 3) == 3


def test_tables_have_the_columns_and_keys_of_a_run() -> None:
    from magneton.schemas.run_tables import RUN_TABLES

    capture = record_values(lambda x: x * 2, (randn(4, 4),))
    for name, table in capture.tables.items():
        assert table.column_names == RUN_TABLES[name].column_names()
        assert table.schema.types == RUN_TABLES[name].arrow_schema().types
        assert set(table.column("capture").to_pylist()) <= {"values"}
        assert set(table.column("input_id").to_pylist()) <= {"0"}
    assert capture.ops.column("ts_ns").null_count == capture.ops.num_rows
    (row,) = capture.ops.to_pylist()
    assert (row["name"], row["input_dims"], row["input_types"]) == ("aten::mul", "[[4,4],[]]", '["float","Scalar"]')


# -- second input


def test_a_second_input_gives_the_same_operators_and_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
    x = randn(16, 8)
    capture = record_values(model, (x,), second_inputs=perturbed((x,)))
    assert capture.second is not None
    first, second = Seen(capture), Seen(capture.second)
    assert [(op.name, op.reads, op.writes) for op in first.ops] == [(op.name, op.reads, op.writes) for op in second.ops]
    assert set(capture.second.ops.column("input_id").to_pylist()) == {"1"}
    made = first.one("addmm").writes[0]
    assert not np.allclose(first.tensors[made]["quantiles"], second.tensors[made]["quantiles"])
    mask = first.one("bernoulli_").writes[0]
    assert first.tensors[mask]["mean"] == second.tensors[mask]["mean"], "what is drawn at random is drawn alike"


def test_state_is_put_back_before_the_second_input() -> None:
    model, _, step = training()
    x, y = randn(5, 8), randn(5, 4, seed=1)
    capture = record_values(step, (x, y), parameters=list(model.parameters()), second_inputs=(x, y))
    assert capture.second is not None
    first, second = Seen(capture), Seen(capture.second)
    weights = [t["mean"] for t in first.tensors.values() if t["role"] == "parameter"]
    assert weights == [t["mean"] for t in second.tensors.values() if t["role"] == "parameter"]


def test_perturbed_inputs_are_of_the_same_kind() -> None:
    ids = torch.tensor([[5, 9, 3, 50], [7, 50, 50, 50]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    positions = torch.arange(4).expand(2, 4)
    state = torch.get_rng_state()
    x = randn(64, 64) * 3 + 5
    given = {"ids": ids, "mask": mask, "positions": positions, "x": x, "same": x, "flag": True, "causal": mask.bool()}
    found = perturbed(given)
    assert torch.equal(torch.get_rng_state(), state)
    assert (found["ids"] == 50).equal(ids == 50), "the end mark stays where it is"
    assert not torch.equal(found["ids"], ids)
    assert found["ids"].min() >= 3
    assert found["ids"].max() == 50
    assert torch.equal(found["mask"], mask)
    assert torch.equal(found["positions"], positions)
    assert torch.equal(found["causal"], mask.bool())
    assert found["same"] is found["x"]
    assert found["flag"] is True
    assert float(found["x"].mean()) == pytest.approx(5, abs=0.2)
    assert float(found["x"].std()) == pytest.approx(3, abs=0.2)
    assert torch.corrcoef(torch.stack([found["x"].flatten(), x.flatten()]))[0, 1].abs() < 0.1
    assert torch.equal(perturbed(given)["x"], found["x"]), "the same seed draws the same"
    assert not torch.equal(perturbed(given, seed=2)["x"], found["x"])
    assert torch.equal(given["x"], randn(64, 64) * 3 + 5), "the given inputs are left alone"
