"""Every kineto file we know normalises, and its totals are those an independent script found (FACTS.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ROOT
from tests.support.facts import NAME_CHARS, Facts, parse, ranks
from tests.support.normalized import Normalizer, Run

SHARED = Path(os.environ.get("MAGNETON_SHARED", ROOT.parent / "shared"))
HAVE = (SHARED / "traces" / "FACTS.md").is_file()
FACTS = parse(SHARED) if HAVE else []

# Not kineto: other formats among the samples, and lists that are no traces.
OTHER = ("execution_trace", "execution_details", "/jax/", "/onnxruntime/", "/tensorflow/", "toplevel_list", "_et.json")


def _kineto_files() -> list[str]:
    roots = (SHARED / "traces", SHARED / "systems" / "samples")
    files = [p.relative_to(SHARED).as_posix() for root in roots for p in root.rglob("*.json*")]
    return sorted(
        f for f in files if ("/expected/" not in f and not any(o in f for o in OTHER)) or "execution_trace_kineto" in f
    )


KINETO = _kineto_files() if HAVE else []


@pytest.mark.parametrize("file", KINETO)
def test_every_kineto_file_normalises_and_its_books_balance(file: str, shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / file)
    (capture,) = run.rows("captures")
    assert capture["source_format"] == "kineto"
    assert capture["n_raw"] == sum(capture[c] for c in ("n_kept", "n_merged", "n_ignored", "n_quarantined"))
    assert capture["n_quarantined"] == 0
    assert run.manifest.captures[0].file == f"raw/profile/rank{capture['rank']}/{Path(file).name}"


def busy_ns(rows: list[dict[str, Any]]) -> int:
    """Union of the intervals of rows."""
    total, reached = 0, -(2**63)
    for start, length in sorted((r["ts_ns"], r["dur_ns"]) for r in rows):
        end = start + length
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def same(found_ns: int, printed_ms: str) -> bool:
    """Whether nanoseconds equal milliseconds to the digits printed."""
    digits = len(printed_ms.partition(".")[2])
    return abs(found_ns / 1e6 - float(printed_ms)) <= 0.5 * 10**-digits + 1e-9


def inherited(run: Run) -> set[int]:
    """Launches whose module comes from a forward operator, not from a module call around them."""
    calls = {
        f["frame_id"]: (f["tid"], f["ts_ns"], f["ts_ns"] + f["dur_ns"])
        for f in run.rows("frames")
        if f["module_id"] is not None
    }
    out = set()
    for launch in run.rows("launches"):
        if launch["module_call"] is not None:
            tid, start, end = calls[launch["module_call"]]
            if tid != launch["tid"] or not start <= launch["ts_ns"] <= end:
                out.add(launch["launch_id"])
    return out


@pytest.mark.parametrize("facts", FACTS, ids=lambda f: f.path)
def test_device_totals(facts: Facts, shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces" / facts.path)
    device = run.rows("kernels")
    kernels = [k for k in device if k["category"] == "kernel"]
    launches = {launch["launch_id"]: launch for launch in run.rows("launches")}
    values = facts.values
    assert same(sum(k["dur_ns"] for k in kernels), values["kern_ms"])
    assert len(kernels) == int(values["n_kern"])
    assert len(device) == int(values["n_gpu"])
    assert same(sum(k["dur_ns"] for k in device), values["gpu_ms"])
    assert same(busy_ns(device), values["busy_ms"])
    assert same(sum(k["dur_ns"] for k in kernels if k["launch_id"] is not None), values["linked_kern_ms"])
    assert sum(k["launch_id"] is None for k in device) == int(values["no launch"])
    homeless = [k for k in device if k["launch_id"] is not None and launches[k["launch_id"]]["op_id"] is None]
    assert len(homeless) == int(values["launch without op"])
    assert len({k["name"] for k in kernels}) == int(values["distinct kernels"])


@pytest.mark.parametrize("facts", FACTS, ids=lambda f: f.path)
def test_module_instances(facts: Facts, shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces" / facts.path)
    instances = {(m["class_name"], m["name"]) for m in run.rows("modules")}
    assert len(instances) == int(facts.values["nn.Module instances"])


@pytest.mark.parametrize("facts", [f for f in FACTS if f.module_ms], ids=lambda f: f.path)
def test_module_classes(facts: Facts, shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces" / facts.path)
    class_of = {m["module_id"]: m["class_name"] for m in run.rows("modules")}
    passed_on = inherited(run)
    totals: dict[str, int] = {}
    for k in run.rows("kernels"):
        if k["launch_id"] is not None and k["module_id"] is not None and k["launch_id"] not in passed_on:
            name = class_of[k["module_id"]]
            totals[name] = totals.get(name, 0) + k["dur_ns"]
    for name, printed in facts.module_ms.items():
        assert same(totals.get(name, 0), printed), (name, totals.get(name), printed)


@pytest.mark.parametrize("facts", [f for f in FACTS if f.op_ms], ids=lambda f: f.path)
def test_ops(facts: Facts, shared: Path, normalized: Normalizer) -> None:
    run = normalized(shared / "traces" / facts.path)
    ops = {op["op_id"]: op["name"] for op in run.rows("ops")}
    launches = {launch["launch_id"]: launch for launch in run.rows("launches")}
    totals: dict[str, tuple[int, int]] = {}
    for k in run.rows("kernels"):
        launch = launches.get(k["launch_id"])
        if launch is None:
            name = "<no launch>"
        elif launch["op_id"] is None:
            name = f"<launch {launch['name']}>"
        else:
            name = ops[launch["op_id"]]
        ns, count = totals.get(name, (0, 0))
        totals[name] = (ns + k["dur_ns"], count + 1)
    for name, (printed, count) in facts.op_ms.items():
        full = [n for n in totals if n == name or (len(name) >= NAME_CHARS and n.startswith(name))]
        found = totals[full[0]] if full else (0, 0)
        assert found[1] == count, (name, found, count)
        assert same(found[0], printed), (name, found, printed)


def test_ranks_of_one_job(shared: Path, normalized: Normalizer) -> None:
    folder = shared / "traces" / "multirank" / "dlrm_v100_8rank"
    run = normalized(*(folder / f"rank{r}.json.gz" for r in range(8)))
    assert [c["rank"] for c in run.rows("captures")] == list(range(8))
    assert not run.manifest.incomplete
    for rank, values in ranks(shared).items():
        device = [k for k in run.rows("kernels") if k["rank"] == rank]
        kernels = [k for k in device if k["category"] == "kernel"]
        assert same(sum(k["dur_ns"] for k in kernels), values["kern_ms"])
        assert len(kernels) == int(values["n_kern"])
        assert len(device) == int(values["n_gpu"])
        assert same(busy_ns(device), values["busy_ms"])
        assert sum(k["launch_id"] is None for k in device) == int(values["no launch"])
    for table, column in (("ops", "op_id"), ("kernels", "kernel_id"), ("launches", "launch_id")):
        found = [row[column] for row in run.rows(table)]
        assert len(set(found)) == len(found)
