"""The recorder without any framework: what it writes, what it removes, and what a crash leaves."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.collectors import Recorder, Workload, record
from magneton.collectors.observed import Device
from magneton.collectors.recording.versions import versions
from magneton.collectors.recording.writer import cpu
from magneton.collectors.scrub import Scrubber, compress_scrubbed
from magneton.collectors.torch import profile as torch_profile
from magneton.schemas.errors import MissingDependencyError, OutputExistsError, UsageError
from magneton.schemas.ids import run_id, sha256_file
from magneton.schemas.manifest import read_manifest


class FakeProfile:
    """Counts steps and writes the count; fails where told to."""

    source_format = "kineto"
    operators: int | None = None

    def __init__(self, fail: str = "") -> None:
        self.fail = fail
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise RuntimeError(f"profiler cannot {name}")

    def start(self) -> None:
        self._call("start")

    def step(self) -> None:
        self._call("step")

    def stop(self) -> None:
        self._call("stop")

    def export(self, directory: Path) -> Path:
        self._call("export")
        file = directory / "fake.pt.trace.json.gz"
        file.write_bytes(gzip.compress(json.dumps({"traceEvents": self.calls}).encode()))
        return file

    def rank(self) -> int:
        return 3

    def devices(self) -> list[Device]:
        return [Device(index=0, name="Fake GPU", uuid="GPU-1")]


def left_behind(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_recording_has_the_layout_and_the_manifest_of_the_design(tmp_path: Path) -> None:
    profile = FakeProfile()
    workload = Workload(model="toy", batch=2, input_tokens=8, steps=2, warmup_steps=1)
    with Recorder(tmp_path / "runs" / "toy", profile, system="toys", workload=workload) as recorder:
        for _ in range(3):
            recorder.step()
    manifest = read_manifest(tmp_path / "runs" / "toy")
    file = tmp_path / "runs" / "toy" / "raw" / "profile" / "rank3" / "fake.pt.trace.json.gz"

    assert profile.calls == ["start", "step", "step", "step", "stop", "export"]
    assert manifest.label == "toy"
    assert manifest.system.name == "toys"
    assert manifest.system.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (manifest.workload.model, manifest.workload.steps, manifest.workload.source) == ("toy", 2, "record")
    assert [(d.kind, d.index) for d in manifest.devices] == [("cpu", None), ("gpu", 0)]
    (entry,) = manifest.files
    assert entry.path == "raw/profile/rank3/fake.pt.trace.json.gz"
    assert (entry.role, entry.sha256, entry.size_bytes) == ("primary", sha256_file(file), file.stat().st_size)
    assert manifest.run_id == run_id([entry.sha256])
    (capture,) = manifest.captures
    assert (capture.name, capture.kind, capture.rank, capture.file) == ("profile", "profile", 3, entry.path)
    assert capture.source_format == "kineto"
    clocks = [anchor.clock for anchor in capture.anchors]
    assert "monotonic" in clocks
    assert clocks == clocks[: len(clocks) // 2] * 2, "every clock of the machine is read before and after"
    for before, after in zip(capture.anchors[: len(clocks) // 2], capture.anchors[len(clocks) // 2 :], strict=True):
        assert before.clock_ns < after.clock_ns
    assert not manifest.incomplete
    assert not capture.incomplete
    assert workload.source is None, "the caller's workload is not written to"
    assert left_behind(tmp_path / "runs") == ["toy"]


def test_a_crash_leaves_a_readable_recording_marked_incomplete(tmp_path: Path) -> None:
    profile = FakeProfile()
    with (
        pytest.raises(ZeroDivisionError),
        Recorder(tmp_path / "r", profile, workload=Workload(steps=5, warmup_steps=1)) as recorder,
    ):
        recorder.step()
        recorder.step()
        raise ZeroDivisionError("secret of the program")
    manifest = read_manifest(tmp_path / "r")
    assert manifest.incomplete
    assert manifest.captures[0].incomplete
    assert "Stopped by ZeroDivisionError after 2 whole steps, warm-up included." in manifest.notes
    assert "secret" not in (tmp_path / "r" / "manifest.json").read_text()
    assert (tmp_path / "r" / manifest.files[0].path).is_file()


def test_fewer_steps_than_announced_are_marked_incomplete(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", FakeProfile(), workload=Workload(steps=5)) as recorder:
        recorder.step()
    manifest = read_manifest(tmp_path / "r")
    assert manifest.incomplete
    assert "Ended after 1 of 5 steps, warm-up included." in manifest.notes


def test_without_announced_steps_there_are_none_to_mark(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", FakeProfile()) as recorder, pytest.raises(UsageError, match="how many steps"):
        recorder.step()
    assert not read_manifest(tmp_path / "r").incomplete


def test_a_taken_output_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", FakeProfile()):
        pass
    kept = (tmp_path / "r" / "manifest.json").read_bytes()
    profile = FakeProfile()
    with pytest.raises(OutputExistsError), Recorder(tmp_path / "r", profile):
        pass
    assert profile.calls == []
    assert (tmp_path / "r" / "manifest.json").read_bytes() == kept
    with Recorder(tmp_path / "r", FakeProfile(), label="second", overwrite=True):
        pass
    assert read_manifest(tmp_path / "r").label == "second"
    assert left_behind(tmp_path) == ["r"]


@pytest.mark.parametrize("fail", ["start", "stop", "export"])
def test_a_profiler_that_fails_leaves_nothing_half_written(tmp_path: Path, fail: str) -> None:
    with pytest.raises(RuntimeError, match=f"cannot {fail}"), Recorder(tmp_path / "r", FakeProfile(fail)):
        pass
    assert left_behind(tmp_path) == []


def test_a_profiler_that_fails_after_a_crash_does_not_hide_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught, Recorder(tmp_path / "r", FakeProfile("export")):
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["magneton: nothing was recorded: profiler cannot export"]
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("workload", [Workload(steps=0), Workload(steps=-1), Workload(steps=1, warmup_steps=-1)])
def test_impossible_steps_are_refused(tmp_path: Path, workload: Workload) -> None:
    with pytest.raises(UsageError, match="cannot record"):
        record(tmp_path / "r", workload=workload)


def test_without_torch_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'magneton\[torch\]'"):
        record(tmp_path / "r")
    assert left_behind(tmp_path) == []


def test_a_torch_that_is_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ModuleNotFoundError("No module named 'typing_extensions'", name="typing_extensions")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="typing_extensions"):
        torch_profile.import_torch()


def test_importing_the_recorder_imports_no_framework(root: Path) -> None:
    code = "import sys; from magneton.collectors import record; sys.exit('torch' in sys.modules)"
    path = ":".join(str(root / stage) for stage in ("collectors", "schemas"))
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


class FakeTorch:
    """As much of torch as a profile asks for: two GPUs, one of them without UUID, and a process group of rank 5."""

    def __init__(self, *, initialized: bool) -> None:
        gpus = [SimpleNamespace(name="Fake H200", uuid="0a1b"), SimpleNamespace(name="Fake MI300X")]
        self.cuda = SimpleNamespace(
            is_initialized=lambda: initialized, device_count=lambda: len(gpus), get_device_properties=gpus.__getitem__
        )
        self.distributed = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: initialized, get_rank=lambda: 5
        )
        self.asked: dict[str, Any] = {}
        self.profiler = SimpleNamespace(
            schedule=lambda **settings: settings,
            supported_activities=lambda: {"cpu"},
            profile=lambda **settings: self.asked.update(settings),
        )


def test_torch_profile_asks_for_shapes_stacks_modules_and_the_announced_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch(initialized=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch_profile.TorchProfile(warmup_steps=2, steps=5)
    assert torch.asked["schedule"] == {"wait": 0, "warmup": 2, "active": 5, "repeat": 1}
    assert torch.asked["record_shapes"] and torch.asked["with_stack"] and torch.asked["with_modules"]
    torch_profile.TorchProfile()
    assert torch.asked["schedule"] is None


def test_accelerators_and_rank_are_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(initialized=True))
    profile = torch_profile.TorchProfile()
    assert profile.devices() == [
        Device(index=0, name="Fake H200", uuid="GPU-0a1b"),
        Device(index=1, name="Fake MI300X", uuid=None),
    ]
    assert profile.rank() == 5
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(initialized=False))
    profile = torch_profile.TorchProfile()
    assert profile.devices() == []
    for launched, rank in (("7", 7), ("", 0), ("x", 0)):
        monkeypatch.setenv("RANK", launched)
        assert profile.rank() == rank


def test_processor_name_is_read_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nmodel name\t: Some CPU @ 2 GHz\n\nmodel name\t: Some CPU @ 2 GHz\n"
    )
    assert cpu(tmp_path / "cpuinfo") == Device(name="Some CPU @ 2 GHz", kind="cpu")
    (tmp_path / "arm").write_text("processor : 0\nCPU part : 0xd0c\n")
    assert cpu(tmp_path / "arm") == Device(kind="cpu")
    assert cpu(tmp_path / "absent") == Device(kind="cpu")


def test_versions_are_those_of_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    assert "numpy" not in versions()
    monkeypatch.setitem(sys.modules, "vllm", sys)
    assert "vllm" not in versions(), "a module of that name that is no distribution has no version"


SCRUBBED_LINES = [
    (b'"host_name": "box \\"7\\"",', b'"host_name": null,'),
    (b'  ],"traceName": "/tmp/x y/t.json" }', b'  ],"traceName": "out.json.gz" }'),
    (b'"name": "/env/lib/python3.11/site-packages/torch/nn/a.py(17): f",', b'"name": "torch/nn/a.py(17): f",'),
    (b'"name": "/usr/lib/python3/dist-packages/b.py(1): g"', b'"name": "b.py(1): g"'),
    (b'"name": "/project/src/train me.py(3): <module>"', b'"name": "src/train me.py(3): <module>"'),
    (b'"name": "/project/deep/er/x.py(3): f"', b'"name": "er/x.py(3): f"'),
    (b'"name": "/tmp/torchinductor_ann/ab/cab.py(3): call"', b'"name": "cab.py(3): call"'),
    (b'"name": "torch/nn/modules/module.py(1): _call_impl"', b'"name": "torch/nn/modules/module.py(1): _call_impl"'),
    (b'"Call stack": "/project/a.py(1): f;/else/b.py(2): g"', b'"Call stack": "a.py(1): f;b.py(2): g"'),
    (b'"name": "load /home/ann/w.bin"', b'"name": "load ~/w.bin"'),
    (b'"name": "/home/annabel/w.bin"', b'"name": "/home/annabel/w.bin"'),
    (b'"name": "void k<a/b>(int)", "ts": 5110785484618.871,', b'"name": "void k<a/b>(int)", "ts": 5110785484618.871,'),
]


@pytest.mark.parametrize(("line", "expected"), SCRUBBED_LINES)
def test_what_identifies_the_machine_is_removed(line: bytes, expected: bytes) -> None:
    scrubber = Scrubber(["/project", "/project/deep", "/"], Path("/home/ann"))
    assert scrubber.line(line, "out.json.gz") == expected


@given(name=st.text(), number=st.decimals(allow_nan=False, allow_infinity=False))
def test_scrubbing_keeps_json_and_numbers(name: str, number: object) -> None:
    line = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "ts": {number}, "host_name": "x"}}'.encode(
        "utf-8", "surrogatepass"
    )
    out = Scrubber(["/project"], Path("/home/ann")).line(line, "t")
    assert json.loads(out.decode("utf-8", "surrogatepass"))["host_name"] is None
    assert f'"ts": {number}'.encode() in out


def test_the_same_trace_packs_to_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"host_name": "box",\n "traceEvents": []}\n')
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        compress_scrubbed(tmp_path / "t.json", tmp_path / name / "t.gz", Scrubber())
    assert (tmp_path / "a" / "t.gz").read_bytes() == (tmp_path / "b" / "t.gz").read_bytes()
    assert json.loads(gzip.decompress((tmp_path / "a" / "t.gz").read_bytes())) == {"host_name": None, "traceEvents": []}
