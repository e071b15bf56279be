"""What is said of the hardware and of the number of ranks: accelerators are devices, names of processors are a remark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.analysis.diff.test_diff import model, run
from tests.support.kineto import Trace

from magneton.analysis.report.summary import statements
from magneton.flows.pairs import compare
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import DiffDocument
from magneton.schemas.manifest import MANIFEST_NAME, Device, read_manifest

FOUND = Path(__file__).resolve().parents[2] / "found"
GPU, OTHER = Device(index=0, name="Some GPU"), Device(index=0, name="Other GPU")
XEON, EPYC = Device(name="Xeon", kind="cpu"), Device(name="EPYC", kind="cpu")


def host_only(us: float) -> Trace:
    """A program that runs on the processor."""
    trace = model(us, steps=5)
    trace.events = [e for e in trace.events if e.get("cat") not in ("kernel", "cuda_runtime")]
    for event in trace.events:
        if event["name"] == "aten::addmm":
            event["dur"] *= us / 20
    return trace


def recorded(tmp_path: Path, name: str, trace: Trace, devices: list[Device]) -> Path:
    """A recording whose manifest names some devices."""
    out = tmp_path / f"run-{name}"
    normalize([trace.write(tmp_path / f"{name}.json")], out)
    manifest = read_manifest(out)
    manifest.devices = devices
    (out / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    return out


def diffed(tmp_path: Path, a: list[Device], b: list[Device], *, host: bool = False) -> DiffDocument:
    traces = [host_only(us) if host else model(us, steps=5) for us in (10.0, 20.0)]
    return run(tmp_path, recorded(tmp_path, "a", traces[0], a), recorded(tmp_path, "b", traces[1], b)).document


def codes(document: DiffDocument) -> list[str]:
    return [note.code for note in document.comparison.notes]


@pytest.mark.parametrize(("a", "b"), [([GPU], [XEON, GPU]), ([XEON, GPU], [EPYC, GPU]), ([GPU, GPU], [GPU])])
def test_a_processor_beside_the_gpu_is_no_device(tmp_path: Path, a: list[Device], b: list[Device]) -> None:
    document = diffed(tmp_path, a, b)
    assert document.comparison.same_devices is True
    assert document.a.devices == document.b.devices == ["Some GPU"]
    assert codes(document) == []
    assert {f.verdict for f in document.findings} == {"inconclusive"}


def test_other_gpus_are_other_devices(tmp_path: Path) -> None:
    document = diffed(tmp_path, [XEON, GPU], [XEON, OTHER])
    assert document.comparison.same_devices is False
    assert codes(document) == ["different_devices"]
    assert {f.verdict for f in document.findings} == {"not comparable"}


def test_a_gpu_that_is_not_named_may_be_another(tmp_path: Path) -> None:
    document = diffed(tmp_path, [XEON], [XEON])
    assert document.comparison.same_devices is None
    assert codes(document) == ["unknown_devices"]


def test_other_processors_are_a_note_and_no_obstacle(tmp_path: Path) -> None:
    document = diffed(tmp_path, [XEON], [EPYC], host=True)
    assert document.comparison.same_devices is None
    assert (document.a.devices, document.b.devices) == (["Xeon"], ["EPYC"])
    assert codes(document) == ["different_processors", "equal_operators"]
    assert "side A ran on Xeon, side B on EPYC" in document.comparison.notes[0].message
    assert document.findings == []


def test_one_processor_is_the_same_whatever_gpus_stand_idle_beside_it(tmp_path: Path) -> None:
    document = diffed(tmp_path, [XEON, GPU], [XEON], host=True)
    assert document.comparison.same_devices is True
    assert codes(document) == ["equal_operators"]


def test_two_ranks_against_one_are_said_first(tmp_path: Path) -> None:
    two = tmp_path / "two"
    two.mkdir()
    for rank in ("r0", "r1"):
        shutil.copy(FOUND / "tp2-against-tp1" / f"{rank}.json", two)
    one = FOUND / "tp2-against-tp1" / "b.json"
    for a, b, letter in ((two, one, "A"), (one, two, "B")):
        document = compare(a, b, tmp_path / letter).document
        first = document.comparison.notes[0]
        assert first.code == "different_rank_counts"
        assert f"rank 0 alone is a part of {letter}'s work" in first.message
        assert statements(document)[0] == f"Note (different_rank_counts): {first.message}."
        assert document.totals["time_ns"].delta == pytest.approx(15e3 if letter == "A" else -15e3)
    assert "different_rank_counts" not in codes(compare(two, two, tmp_path / "same").document)


def test_a_rank_that_states_the_size_of_its_job_needs_no_other_rank(tmp_path: Path) -> None:
    case = FOUND / "tp2-against-tp1"
    document = compare(case / "r0.json", case / "b.json", tmp_path / "out").document
    assert codes(document)[0] == "different_rank_counts"
    assert "side A ran on 2 ranks, side B on one rank" in document.comparison.notes[0].message
    larger = json.loads((case / "r0.json").read_text())
    larger["distributedInfo"]["world_size"] = 8
    (tmp_path / "eight.json").write_text(json.dumps(larger))
    document = compare(tmp_path / "eight.json", case / "r0.json", tmp_path / "other").document
    assert "rank 0 alone is a smaller part of A's work" in document.comparison.notes[0].message
