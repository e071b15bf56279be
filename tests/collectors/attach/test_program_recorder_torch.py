"""Recordings of programs that are run again, and of unmodified commands, up to their tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.collectors import Workload, record  # noqa: E402
from magneton.collectors.recording.knobs import environment_knobs, model_knobs, torch_knobs  # noqa: E402
from magneton.collectors.recording.program import modules_in  # noqa: E402
from magneton.collectors.recording.remarks import NO_SECOND  # noqa: E402
from magneton.flows.traces import normalize  # noqa: E402
from magneton.schemas.errors import InputFormatError, UsageError  # noqa: E402
from magneton.schemas.manifest import Manifest, read_manifest  # noqa: E402
from magneton.schemas.tables.parquet import read_table, write_table  # noqa: E402
from magneton.schemas.tables.run import RUN_TABLES  # noqa: E402

WORKLOAD = Workload(model="toy", batch=2, steps=3, warmup_steps=1)
ALL = ("energy", "profile", "values")


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    return read_table(run / "tables" / f"{table}.parquet", table).to_pylist()


def raw_names(run: Path) -> set[str]:
    return {p.relative_to(run).as_posix() for p in (run / "raw").rglob("*") if p.is_file()}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    net = model()
    with torch.no_grad(), record(tmp_path / "r", captures=ALL, workload=WORKLOAD, system="toys") as rec:
        out = rec.run(net, (torch.ones(2, 16),))
    assert torch.equal(out, net(torch.ones(2, 16)).detach())
    assert len(rec.inputs) == 2
    return tmp_path / "r"


def test_three_captures_in_one_recording(recorded: Path) -> None:
    manifest = read_manifest(recorded)
    assert [(c.name, c.kind, c.input_id) for c in manifest.captures] == [
        ("values", "values", "0"),
        ("values", "values", "1"),
        ("energy", "energy", None),
        ("profile", "profile", None),
    ]
    assert not manifest.incomplete
    assert (manifest.system.name, manifest.workload.steps, manifest.workload.warmup_steps) == ("toys", 3, 1)
    tables = ("ops", "tensors", "uses", "modules", "frames")
    expected = {f"raw/values/rank0/{i}/{t}.parquet" for i in "01" for t in tables}
    expected |= {"raw/values/rank0/0/knobs.parquet", "raw/energy/rank0/steps.parquet"}
    expected |= {"raw/profile/rank0/torch.pt.trace.json.gz"}
    found = raw_names(recorded)
    assert expected <= found
    assert {f.path for f in manifest.files} == found
    assert any(note.startswith("No sensor") for note in manifest.notes) or manifest.sensors


def test_the_tables_of_such_a_recording(recorded: Path, tmp_path: Path) -> None:
    run = tmp_path / "n"
    manifest = normalize([recorded], run)
    assert {(c.kind, c.input_id) for c in manifest.captures} == {
        (c.kind, c.input_id) for c in read_manifest(recorded).captures
    }
    ops = rows(run, "ops")
    assert len({op["op_id"] for op in ops}) == len(ops), "ids are unique across captures"
    values = [op for op in ops if op["capture"] == "values"]
    assert {op["input_id"] for op in values} == {"0", "1"}
    assert all(op["ts_ns"] is None for op in values)
    assert all(op["ts_ns"] is not None for op in ops if op["capture"] == "profile")
    ids = {op["op_id"] for op in values}
    assert {use["op_id"] for use in rows(run, "uses")} <= ids
    modules = {m["module_id"]: m for m in rows(run, "modules")}
    (gelu,) = [op for op in values if op["name"] == "aten::gelu" and op["input_id"] == "0"]
    assert modules[gelu["module_id"]]["path"] == "Sequential_0/GELU_0"
    assert modules[gelu["module_id"]]["capture"] == "values"
    frames = {f["frame_id"]: f for f in rows(run, "frames")}
    assert len(frames) == len(rows(run, "frames"))
    assert frames[gelu["frame_id"]]["file"].endswith("test_program_recorder_torch.py")
    tensors = rows(run, "tensors")
    assert {t["run_id"] for t in tensors} == {manifest.run_id}
    for name in ("0", "1"):
        assert [t["tensor_id"] for t in tensors if t["input_id"] == name] == list(range(len(tensors) // 2))
    steps = rows(run, "steps")
    assert [s["kind"] for s in steps if s["capture"] == "energy"] == ["bare_step"] * 3
    assert [s["kind"] for s in steps if s["capture"] == "profile"] == ["profiler_step"] * 3
    captures = {c["capture"]: c for c in rows(run, "captures") if c["input_id"] != "1"}
    profile, energy = captures["profile"], captures["energy"]
    assert energy["base_unix_ns"] == profile["base_unix_ns"]
    assert energy["ts_ns"] + energy["dur_ns"] < profile["ts_ns"], "the energy capture ran before, on one time line"
    assert profile["ts_ns"] - energy["ts_ns"] < 300e9
    knobs = {(k["source"], k["name"]): k["value"] for k in rows(run, "knobs")}
    assert knobs["torch", "torch.is_grad_enabled"] == "False"
    assert knobs["torch", "torch.backends.mkldnn.enabled"] in ("True", "False")
    assert knobs["model", "Sequential.parameters"] == str(16 * 32 + 32 + 32 * 4 + 4)
    assert ("package", "torch") in knobs
    # Once more, in place: nothing is lost.
    again = normalize([run], run, options_overwrite())
    assert again.run_id == manifest.run_id
    assert raw_names(run) == raw_names(recorded)
    assert len(rows(run, "tensors")) == len(tensors)
    assert len(rows(run, "steps")) == len(steps)


def options_overwrite() -> Any:
    from magneton.flows.traces import NormalizeOptions

    return NormalizeOptions(overwrite=True)


def test_values_alone_can_be_normalised(tmp_path: Path) -> None:
    with record(tmp_path / "r", captures=("values",)) as rec:
        rec.run(model(), (torch.ones(2, 16),), second_inputs=None)
    manifest = read_manifest(tmp_path / "r")
    assert NO_SECOND in manifest.notes
    assert [c.input_id for c in manifest.captures] == ["0"]
    normalize([tmp_path / "r"], tmp_path / "n")
    assert [c["kind"] for c in rows(tmp_path / "n", "captures")] == ["values"]


def test_a_crash_leaves_what_was_recorded_marked_incomplete(tmp_path: Path) -> None:
    net, calls = model(), []

    def step(x: Any) -> Any:
        calls.append(1)
        y = net(x)
        if len(calls) == 5:
            raise ZeroDivisionError("secret of the program")
        return y

    with (
        pytest.raises(ZeroDivisionError),
        record(tmp_path / "r", captures=ALL, workload=WORKLOAD) as rec,
    ):
        rec.run(step, (torch.ones(2, 16),))
    manifest = read_manifest(tmp_path / "r")
    assert manifest.incomplete
    assert [(c.kind, c.incomplete) for c in manifest.captures] == [
        ("values", False),
        ("values", False),
        ("energy", True),
    ]
    assert "Stopped by ZeroDivisionError during the energy capture." in manifest.notes
    assert "Captures that were wanted and are missing: profile." in manifest.notes
    assert "secret" not in (tmp_path / "r" / "manifest.json").read_text()
    normalize([tmp_path / "r"], tmp_path / "n")
    assert len(rows(tmp_path / "n", "steps")) == 1


def test_a_crash_within_the_values_leaves_the_operators_until_then(tmp_path: Path) -> None:
    def step(x: Any) -> Any:
        y = x * 2
        raise KeyError(float(y.sum()))

    with pytest.raises(KeyError), record(tmp_path / "r", captures=ALL) as rec:
        rec.run(step, (torch.ones(2, 16),))
    manifest = read_manifest(tmp_path / "r")
    assert manifest.incomplete
    assert [(c.kind, c.incomplete) for c in manifest.captures] == [("values", True)]
    normalize([tmp_path / "r"], tmp_path / "n")
    assert [op["name"] for op in rows(tmp_path / "n", "ops")] == [
        "aten::mul",
        "aten::sum",
        "aten::_local_scalar_dense",
    ]


def test_a_training_step_is_recorded_from_the_same_state(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = [p.detach().clone() for p in net.parameters()]
    with record(tmp_path / "r", captures=("values",)) as rec:
        rec.run(step, (torch.ones(2, 16),))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    normalize([tmp_path / "r"], tmp_path / "n")
    flags = {flag for op in rows(tmp_path / "n", "ops") for flag in (op["flags"] or "").split()}
    assert {"backward", "optimizer"} <= flags


def test_misuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no capture 'joules'"):
        record(tmp_path / "r", captures=("joules",))
    with pytest.raises(UsageError, match="nothing was run"), record(tmp_path / "r", captures=("values",)):
        pass
    assert list(tmp_path.iterdir()) == []
    with record(tmp_path / "r", captures=("values",)) as rec:
        rec.run(model(), (torch.ones(2, 16),))
        with pytest.raises(UsageError, match="one program"):
            rec.run(model(), (torch.ones(2, 16),))


def test_modules_of_a_program_are_found() -> None:
    import functools

    net, other = model(), model()

    def step(x: Any, head: Any = other) -> Any:
        return head(net(x))

    assert modules_in(net) == [net]
    assert modules_in(net.forward) == [net]
    assert set(map(id, modules_in(step))) == {id(net), id(other)}
    assert modules_in(functools.partial(lambda n, x: n(x), net)) == [net]
    assert modules_in(torch.relu) == []


def test_broken_tables_are_refused(recorded: Path, tmp_path: Path) -> None:
    path = recorded / "raw" / "values" / "rank0" / "0" / "uses.parquet"
    uses = read_table(path, "uses")
    index = uses.column_names.index("op_id")
    wrong = uses.set_column(index, uses.schema.field(index), uses.column("op_id").take([0] * uses.num_rows))
    write_table(path, RUN_TABLES["uses"], wrong.set_column(index, uses.schema.field(index), [[999] * uses.num_rows]))
    manifest = json.loads((recorded / "manifest.json").read_text())
    from magneton.schemas.ids import sha256_file

    for entry in manifest["files"]:
        if entry["path"].endswith("rank0/0/uses.parquet"):
            entry["sha256"] = sha256_file(path)
    (recorded / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputFormatError, match="refers to rows that are not there"):
        normalize([recorded], tmp_path / "n")
    assert not (tmp_path / "n").exists()


# -- knobs


def test_secrets_are_never_read() -> None:
    found = environment_knobs(
        {
            "OMP_NUM_THREADS": "2",
            "HF_TOKEN": "hf_abc",
            "CUDA_SECRET_KEY": "x",
            "TORCH_AUTH": "x",
            "VLLM_API_KEY": "x",
            "HF_ENDPOINT": "https://ann:pw@host/",
            "HF_HOME": "/somewhere/of/ann",
            "CUDA_HOME": "/usr/local/cuda-12.4",
            "HOME": "/x",
            "NCCL_DEBUG": "INFO",
        }
    )
    assert found == {"OMP_NUM_THREADS": "2", "CUDA_HOME": "/usr/local/cuda-12.4", "NCCL_DEBUG": "INFO"}


def test_settings_of_torch_are_those_in_force() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found = torch_knobs(torch)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found["torch.get_float32_matmul_precision"] == "high"
    assert found["torch.backends.cudnn.benchmark"] == "False"
    assert found["torch.get_num_threads"] == str(torch.get_num_threads())
    assert len([name for name in found if name.startswith("torch.backends.")]) > 15


def test_configuration_of_models() -> None:
    class Config:
        _attn_implementation = "sdpa"

        def to_dict(self) -> dict[str, Any]:
            return {"layers": 2, "hf_token": "secret", "nested": {"a": 1}, "dtype": None, "num_key_value_heads": 4}

    net = model()
    net.config = Config()
    found = model_knobs(net)
    assert found["Sequential.config.layers"] == "2"
    assert found["Sequential.config.nested"] == '{"a": 1}'
    assert found["Sequential.config.num_key_value_heads"] == "4"
    assert found["Sequential.config.attn_implementation"] == "sdpa"
    assert found["Sequential.config.dtype"] is None
    assert "secret" not in found.values()


# -- unmodified commands

INFERENCE = """
    import sys, torch
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
    with torch.no_grad():
        for step in range(int(sys.argv[1])):
            net(torch.ones(8, 16)).softmax(-1)
            if sys.argv[2:] == [str(step)]:
                sys.exit(7)
"""
TRAINING = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(6):
        optimizer.zero_grad()
        loss = net(torch.ones(8, 16)).square().mean() + net(torch.zeros(8, 16)).mean()
        loss.backward()
        optimizer.step()
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Record a script with the command line."""

    def start(script: str, *args: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Any:
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(script))
        command = [sys.executable, "-m", "magneton.cli", "record", "-o", str(tmp_path / "r"), *options, "--"]
        return subprocess.run(
            [*command, sys.executable, str(file), *args],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | (env or {}),
        )

    return start


def manifest_of(tmp_path: Path) -> Manifest:
    return read_manifest(tmp_path / "r")


def test_an_unmodified_program(tmp_path: Path, run: Run) -> None:
    done = run(INFERENCE, "9")
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(tmp_path)
    assert [c.kind for c in manifest.captures] == ["energy", "profile", "values"]
    assert not manifest.incomplete, manifest.notes
    assert NO_SECOND in manifest.notes
    assert "Recorded from outside: steps are calls of an outermost module; the command ran once for each capture." in (
        manifest.notes
    )
    assert "torch" in manifest.system.versions
    normalize([tmp_path / "r"], tmp_path / "n")
    steps = rows(tmp_path / "n", "steps")
    assert [s["kind"] for s in steps].count("bare_step") == [s["kind"] for s in steps].count("profiler_step") == 5
    names = [op["name"] for op in rows(tmp_path / "n", "ops") if op["capture"] == "values"]
    assert names == ["aten::_softmax", "aten::ones", "aten::t", "aten::addmm", "aten::gelu", "aten::t", "aten::addmm"]
    paths = {(m["capture"], m["path"]) for m in rows(tmp_path / "n", "modules")}
    assert ("values", "Sequential_0/GELU_0") in paths
    assert ("profile", "Sequential_0/GELU_0") in paths, "the profiler still sees modules"
    roles = {t["role"] for t in rows(tmp_path / "n", "tensors")}
    assert {"parameter", "output"} <= roles


def test_an_unmodified_training_program(tmp_path: Path, run: Run) -> None:
    done = run(TRAINING, options=("--capture", "values", "--capture", "profile", "--warmup", "1", "--steps", "2"))
    assert done.returncode == 0, done.stderr
    assert "Recorded from outside: steps are steps of the optimiser; the command ran once for each capture." in (
        manifest_of(tmp_path).notes
    )
    normalize([tmp_path / "r"], tmp_path / "n")
    ops = [op for op in rows(tmp_path / "n", "ops") if op["capture"] == "values"]
    assert sum(op["name"] == "aten::addmm" for op in ops) == 4, "one step: two passes of two layers"
    flags = [set((op["flags"] or "").split()) for op in ops]
    assert "optimizer" in flags[-1] and any("backward" in f for f in flags)
    assert len([s for s in rows(tmp_path / "n", "steps") if s["kind"] == "profiler_step"]) == 2


def test_the_exit_code_is_passed_on(tmp_path: Path, run: Run) -> None:
    done = run(INFERENCE, "9", "6", options=("--capture", "profile", "--capture", "values"))
    assert done.returncode == 7
    manifest = manifest_of(tmp_path)
    assert manifest.incomplete
    assert "The command ended with exit code 7." in manifest.notes
    assert "The capture of profile ended after 5 of 5 steps." not in manifest.notes
    assert "Captures that were wanted and are missing: values." in manifest.notes
    assert [c.kind for c in manifest.captures] == ["profile"]


def test_a_failing_command_that_left_nothing(tmp_path: Path, run: Run) -> None:
    done = run("import sys; sys.exit(3)")
    assert done.returncode == 3
    assert not (tmp_path / "r").exists()


def test_a_program_with_too_few_steps_is_told(tmp_path: Path, run: Run) -> None:
    done = run(INFERENCE, "1")
    assert done.returncode == 2
    assert "fewer than 3 steps of it were seen" in done.stderr
    assert not (tmp_path / "r").exists()
    done = run(INFERENCE, "3", options=("--warmup", "0", "--steps", "0", "--value-steps", "0"))
    assert done.returncode == 0, done.stderr
    normalize([tmp_path / "r"], tmp_path / "n")
    values = [op["name"] for op in rows(tmp_path / "n", "ops") if op["capture"] == "values"]
    assert values.count("aten::gelu") == 3
    paths = {m["path"] for m in rows(tmp_path / "n", "modules") if m["capture"] == "values"}
    assert "Sequential_0/GELU_0" in paths


def test_warm_up_steps_are_in_no_capture_without_an_end(tmp_path: Path, run: Run) -> None:
    done = run(INFERENCE, "5", options=("--warmup", "2", "--steps", "0", "--value-steps", "0"))
    assert done.returncode == 0, done.stderr
    assert manifest_of(tmp_path).workload.steps == 3
    normalize([tmp_path / "r"], tmp_path / "n")
    ops = rows(tmp_path / "n", "ops")
    for capture in ("profile", "values"):
        assert [op["name"] for op in ops if op["capture"] == capture].count("aten::gelu") == 3, capture


@pytest.mark.parametrize("name", ["nvmll", "command:meter 'all"])
def test_sensors_that_do_not_exist_are_refused_before_anything_runs(tmp_path: Path, run: Run, name: str) -> None:
    done = run("open('ran', 'w').close()", options=("--sensor", name))
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UsageError):
        record(tmp_path / "r", captures=("values",), sensors=[name])


def test_a_recorder_that_fails_leaves_the_program_alone(tmp_path: Path, run: Run) -> None:
    done = run(
        """
        import torch
        from torch.utils._python_dispatch import _get_current_dispatch_mode
        from magneton.collectors.torch.dispatch import ValueRecorder
        def broken(self, result):
            raise OSError("disk full")
        ValueRecorder.finish = broken
        net = torch.nn.Linear(4, 4)
        with torch.no_grad():
            for _ in range(6):
                net(torch.ones(2, 4))
        assert _get_current_dispatch_mode() is None
        """,
        options=("--capture", "values"),
    )
    assert "the capture of values failed: OSError: disk full" in done.stderr
    assert "AssertionError" not in done.stderr


def test_a_program_that_goes_to_another_directory(tmp_path: Path) -> None:
    """The output is named as the user named it, from where the user stood; the program may stand elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "script.py"
    script.write_text("import os\nos.chdir('elsewhere')\n" + textwrap.dedent(INFERENCE))
    command = [sys.executable, "-m", "magneton.cli", "record", "-o", "r", "--capture", "values", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script), "5"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [c.kind for c in manifest_of(tmp_path).captures] == ["values"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_full_disk_inside_the_command_is_told_without_temporary_names(tmp_path: Path, run: Run) -> None:
    done = run(
        """
        import errno, torch
        from magneton.collectors.attach import torch_values_session
        def full(path, *args, **more):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        torch_values_session.keep_values = full
        net = torch.nn.Linear(4, 4)
        with torch.no_grad():
            for _ in range(6):
                net(torch.ones(2, 4))
        """,
        options=("--capture", "values"),
    )
    assert done.returncode == 2
    assert "No space left on device: 'values/rank0/0'" in done.stderr.splitlines()[-1]
    assert ".magneton-" not in done.stderr


def test_a_taken_output_is_refused_before_anything_runs(tmp_path: Path, run: Run) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine").touch()
    done = run("open('ran', 'w').close()")
    assert done.returncode == 2
    assert not (tmp_path / "ran").exists()


def test_a_shadowed_sitecustomize_still_runs(tmp_path: Path, run: Run) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.chained = __name__\n")
    script = "import torch\nassert chained == 'sitecustomize'\n" + textwrap.dedent(INFERENCE)
    done = run(
        script,
        "4",
        options=("--capture", "values"),
        env={"PYTHONPATH": f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 0, done.stderr
    assert [c.kind for c in manifest_of(tmp_path).captures] == ["values"]


def test_compiled_programs_are_profiled_compiled(tmp_path: Path, run: Run) -> None:
    script = """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
        net = torch.compile(net, backend="eager", fullgraph=True)
        with torch.no_grad():
            for step in range(6):
                net(torch.ones(8, 16))
    """
    done = run(script, options=("--capture", "profile", "--capture", "values", "--steps", "2"))
    assert done.returncode == 0, done.stderr
    assert any("under torch.compile" in note for note in manifest_of(tmp_path).notes)
    normalize([tmp_path / "r"], tmp_path / "n")
    profile = {op["name"] for op in rows(tmp_path / "n", "ops") if op["capture"] == "profile"}
    assert any("Compiled" in name or "Dynamo" in name for name in profile), profile
    values = [op["name"] for op in rows(tmp_path / "n", "ops") if op["capture"] == "values"]
    assert "aten::gelu" in values
