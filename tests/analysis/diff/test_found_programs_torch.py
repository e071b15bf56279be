"""Programs whose costly part was in no row once, recorded and compared as they are; the right values came with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.analysis.diff.pipeline import diff  # noqa: E402
from magneton.analysis.diff.settings import DiffSettings  # noqa: E402
from magneton.analysis.recording import Recording  # noqa: E402
from magneton.flows.traces import normalize  # noqa: E402
from magneton.schemas.documents.diff import DiffDocument, HostTimeDoc  # noqa: E402
from magneton.transforms.job import NormalizeOptions  # noqa: E402

FOUND = Path(__file__).resolve().parents[2] / "found"
Compare = Callable[[str, str, str], DiffDocument]


@pytest.fixture
def compared(tmp_path: Path, root: Path) -> Compare:
    """Record a program of ``tests/found`` with two arguments and compare the two, by structure."""
    paths = [str(root / stage) for stage in ("cli", "collectors", "transforms", "analysis", "schemas")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def recording(program: str, argument: str) -> Recording:
        out = tmp_path / argument
        options = [
            "record",
            "-o",
            str(out),
            "--capture",
            "profile",
            "--",
            sys.executable,
            str(FOUND / program),
            argument,
        ]
        subprocess.run(
            [sys.executable, "-m", "magneton.cli", *options],
            check=True,
            capture_output=True,
            env=environment,
            timeout=280,
        )
        normalize([out], tmp_path / f"{argument}-tables", NormalizeOptions(keep_raw=False))
        return Recording.open(tmp_path / f"{argument}-tables")

    def between(program: str, a: str, b: str) -> DiffDocument:
        sides = [recording(program, argument) for argument in (a, b)]
        # Every step counts: on a busy machine the first may be taken for warm-up.
        document = diff(sides[0], sides[1], DiffSettings(all_steps=True), "test").document
        for side in (document.a, document.b):
            assert len(side.host_steps) >= 3
            assert all(adds_up(time) for time in side.host_steps)
        return document

    return between


def adds_up(time: HostTimeDoc) -> bool:
    parts = time.operators_ns + time.dispatch_ns + time.python_ns + time.waiting_ns - time.beside_ns
    return abs(parts - time.wall_ns) < 1.0


def test_waiting_in_a_loop_is_a_row(compared: Compare) -> None:
    """Side A sleeps for 5 ms in every step. The sleep is a row on side A only, and the largest."""
    document = compared("host-wait/wait_in_loop.py", "a", "b")
    (wait,) = [region for region in document.regions if region.kernel_class_a == "host_wait"]
    assert wait.kind == "only_a" and wait.ops_a == "host wait: sleep"
    # At least as long as asked for; the machine may be busy when it ends.
    assert wait.low_ns_a >= 5e6 and wait.median_ns_a < 8e6
    assert document.b.host_time.waiting_ns == 0


def test_an_operator_that_calls_one_of_its_own_name_is_a_row(compared: Compare) -> None:
    document = compared("own-time-of-nested-name/topk_by_sort.py", "a", "b")
    first = max(document.groups, key=lambda group: abs(group.median_ns.delta or 0.0))
    assert "aten::sort" in (first.ops_a or "")
    (sort,) = [row for row in document.rollups["op"] if row.name_a == "aten::sort"]
    assert sort.time_ns.a > 0.5 * document.totals["time_ns"].a


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_program_agrees_with_its_wall_time(compared: Compare, backend: str) -> None:
    """Rows and wall time agree in sign and size; the compiled region's own time is a row."""
    document = compared("compiled-on-cpu/program.py", "none", backend)
    wall = document.b.host_time.wall_ns - document.a.host_time.wall_ns
    shown = [
        side.operators_ns + side.python_ns + side.waiting_ns for side in (document.a.host_time, document.b.host_time)
    ]
    assert shown[1] - shown[0] == pytest.approx(wall, abs=0.05 * document.a.host_time.wall_ns)
    names = [row.name_b for row in document.rollups["op"] if row.time_ns.b]
    assert any(name and name.startswith("Torch-Compiled Region") for name in names)
