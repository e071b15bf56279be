"""How well bare traces are aligned: real traces against themselves with one known change.

Usage, from the root of the project::

    python -m benchmarks.alignment [--traces DIRECTORY] [--only TEXT] [--edits NAME ...] [--markdown FILE] [--json]

``DIRECTORY`` holds the traces of ``TRACES`` (default: ``../shared/traces``). Each trace is normalised, edited, normalised again and
compared with itself, as recorded and without what torch.profiler leaves out by default (``bare``: no shapes, no Python frames). The truth is
kept aside (``benchmarks.matching.edits``). What counts is not how much is called aligned, but how much is aligned with its true
partner. Unrelated programs must not be aligned at all.

Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.matching import edits
from benchmarks.matching.edit_score import Outcome, Score, outcome, score
from magneton.analysis.diff.document import DiffResult
from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.flows.traces import normalize
from magneton.schemas.errors import NotComparableError
from magneton.transforms.job import NormalizeOptions

TRACES = (
    "torch_infer_h100_mi300/bert_small_h100",
    "torch/aa_alexnet_run1",
    "multirank/dlrm_v100_8rank/rank0",
    "torch_infer_h100_mi300/qwen1.5_0.5b_h100",
    "torch_infer_h100_mi300/timesformer_h100",
    "torch/b200_eager",
    "torch/a100_nccl_rank0",
    "torch/mi300x_resnet_act_checkpoint_rank0",
    "torch/hta_control",
    "sglang/qwen3_8b_prefilldecode",
)
UNRELATED = (
    ("torch_infer_h100_mi300/bert_small_h100", "torch_infer_h100_mi300/qwen1.5_0.5b_h100"),
    ("torch_infer_h100_mi300/bert_small_h100", "torch_infer_h100_mi300/timesformer_h100"),
    ("torch_infer_h100_mi300/timesformer_h100", "torch_infer_h100_mi300/qwen1.5_0.5b_h100"),
    ("torch/aa_alexnet_run1", "torch/mi300x_resnet_act_checkpoint_rank0"),
    ("torch/a100_nccl_rank0", "torch/aa_alexnet_run1"),
    ("torch/b200_eager", "sglang/qwen3_8b_prefilldecode"),
    ("torch_infer_h100_mi300/qwen1.5_0.5b_h100", "sglang/qwen3_8b_prefilldecode"),
    ("multirank/dlrm_v100_8rank/rank0", "torch/hta_control"),
)
# What is left out of sides A and B: shapes, stacks.
AS_RECORDED, BARE = "as recorded", "bare"
STRIPPED = {
    AS_RECORDED: ((False, False), (False, False)),
    "no shapes": ((True, False), (True, False)),
    "no stacks": ((False, True), (False, True)),
    BARE: ((True, True), (True, True)),
    "A bare": ((True, True), (False, False)),
    "B without shapes": ((False, False), (True, False)),
    "B without stacks": ((False, False), (False, True)),
}
# Neighbours of one name that differ by nothing but their shapes cannot be told apart without shapes.
NOT_BARE = ("swap shapes",)
CUTS = ("cut begin", "cut end")
INVARIANT = "drop 5 %"

RIGHT, ALIGNED, DROPPED_MORE = 0.99, 0.99, 0.005
FALSE, FALSE_MANY = 0.005, 0.02
FUSED_RECALL, COMMON, UNRELATED_MOST = 0.8, 0.9, 0.1


@dataclass
class Row:
    """One comparison: what was compared, its measures, and which goals it misses."""

    trace: str
    edit: str
    facts: str
    what: str
    score: Score | None
    seconds: float
    short: list[str]


def short_of(name: str, facts: str, found: Score) -> list[str]:
    """Return the goals that a comparison misses."""
    bad: list[str] = []

    def need(right: bool, text: str) -> None:
        if not right:
            bad.append(text)

    if name in CUTS:
        need(found.findings == 0, f"{found.findings} findings")
        need(found.aligned[1] >= COMMON, f"{found.aligned[1]:.1%} of the common part aligned")
        return bad
    if name == "hold up a step":
        need(found.findings == 0, f"{found.findings} findings")
    fused_bare = name == "fuse" and facts not in (AS_RECORDED, "no shapes", "no stacks")
    need(found.precision >= RIGHT, f"precision {found.precision:.3f}")
    need(found.recall >= (FUSED_RECALL if fused_bare else RIGHT), f"recall {found.recall:.3f}")
    if name != "fuse":
        least = 1 - found.dropped - DROPPED_MORE if found.dropped else ALIGNED
        need(min(found.aligned) >= least, f"aligned {min(found.aligned):.1%}")
        most = FALSE_MANY if name == "drop 5 %" else FALSE
        need(found.false < most, f"false differences {found.false:.2%}")
    if name == "slow class":
        need(found.changed is not None and abs(found.changed - 1) <= 0.02, f"changed class x{found.changed}")
        need(found.found is not False, "changed class is no finding")
        need(found.found is None or found.findings == 1, f"{found.findings} findings")
    elif found.found is None:
        need(found.findings == 0 or name in ("fuse", "drop one", "drop 5 %"), f"{found.findings} findings")
    return bad


class Bench:
    """Normalises and compares traces below a directory of its own.

    Args:
        traces: directory of the traces.
        work: directory for edited traces and recordings.
    """

    def __init__(self, traces: Path, work: Path) -> None:
        self._traces, self._work = traces, work
        self._count = 0

    def read(self, name: str) -> edits.Trace:
        """Read a trace by its name, without ``.json`` or ``.json.gz``."""
        path = self._traces / f"{name}.json.gz"
        return edits.read(path if path.exists() else path.with_suffix(""))

    def recording(self, trace: edits.Trace, *, indent: int | None = None, shuffled: int | None = None) -> Recording:
        """Normalise a trace, written with blanks or in another order if asked."""
        self._count += 1
        path = self._work / f"trace{self._count}.json"
        trace.write(path, indent=indent, shuffled=shuffled)
        out = self._work / f"run{self._count}"
        normalize([path], out, NormalizeOptions(label="run", keep_raw=False))
        path.unlink()
        return Recording.open(out)

    def rows(self, name: str, wanted: Sequence[str]) -> Iterator[Row]:
        """Compare a trace with its edits, as recorded and stripped."""
        base = self.read(name)
        sides: dict[tuple[bool, bool], Recording] = {}

        def side_a(shapes: bool, stacks: bool) -> Recording:
            if (shapes, stacks) not in sides:
                copy = base.copy()
                edits.strip(copy, shapes=shapes, stacks=stacks)
                sides[shapes, stacks] = self.recording(copy)
            return sides[shapes, stacks]

        for edit in wanted:
            changed = edits.edit(base, edit)
            if changed is None:
                continue
            for facts, (left, right) in STRIPPED.items():
                if edit != "same" and facts not in (AS_RECORDED, BARE):
                    continue
                if (edit in NOT_BARE and facts == BARE) or (edit == "same" and facts == AS_RECORDED):
                    continue
                b = changed.trace.copy()
                edits.strip(b, shapes=right[0], stacks=right[1])
                yield self._row(name, edit, facts, changed, side_a(*left), b)
                if edit == INVARIANT:
                    yield self._invariant(name, facts, changed, side_a(*left), b)

    def _row(self, name: str, edit: str, facts: str, changed: edits.Edited, a: Recording, trace: edits.Trace) -> Row:
        b = self.recording(trace)
        start = time.perf_counter()
        try:
            result = compare(a, b)
        except NotComparableError as error:
            return Row(name, edit, facts, changed.what, None, time.perf_counter() - start, [f"refused: {error}"])
        seconds = time.perf_counter() - start
        found = score(outcome(a, b, result), changed.truth, changed.changed, changed.dropped)
        return Row(name, edit, facts, changed.what, found, seconds, short_of(edit, facts, found))

    def _invariant(self, name: str, facts: str, changed: edits.Edited, a: Recording, trace: edits.Trace) -> Row:
        """Compare with the same trace written otherwise, and with the sides swapped. Each file has a run id of its own."""
        start = time.perf_counter()
        plain, blanks, shuffled = (
            self.recording(trace, **how)
            for how in ({}, {"indent": 1}, {"shuffled": 7})  # type: ignore[arg-type]
        )
        wanted = said(a, plain).signature()
        bad = [
            f"{what} change the result"
            for what, found in (
                ("blanks", said(a, blanks).signature()),
                ("other order in the file does", said(a, shuffled).signature()),
                ("swapped sides", said(plain, a).signature(swapped=True)),
            )
            if found != wanted
        ]
        return Row(
            name, "blanks, order, swapped sides, run ids", facts, changed.what, None, time.perf_counter() - start, bad
        )

    def unrelated(self, names: tuple[str, str], facts: str) -> Row:
        """Compare two programs that have nothing to do with one another."""
        (shapes, stacks), _ = STRIPPED[facts]
        pair = [self.read(name) for name in names]
        for one in pair:
            edits.strip(one, shapes=shapes, stacks=stacks)
        a, b = (self.recording(one) for one in pair)
        start = time.perf_counter()
        try:
            result = compare(a, b)
        except NotComparableError as error:
            return Row(
                " | ".join(names), "unrelated", facts, f"refused: {error}", None, time.perf_counter() - start, []
            )
        coverage, notes = result.document.coverage, [note.code for note in result.document.comparison.notes]
        aligned = (coverage.a or 0.0, coverage.b or 0.0)
        found = Score(0.0, 0.0, aligned, 0.0, None, 0.0, said(a, b).findings, None, notes)
        bad = [f"aligned {max(aligned):.1%}"] if max(aligned) >= UNRELATED_MOST else []
        if "low_coverage" not in notes[:1]:
            bad.append("not said first")
        return Row(" | ".join(names), "unrelated", facts, "", found, time.perf_counter() - start, bad)


def compare(a: Recording, b: Recording) -> DiffResult:
    """Compare two recordings without their energies."""
    return diff(a, b, DiffSettings(energy=False), "benchmarks.alignment")


def said(a: Recording, b: Recording) -> Outcome:
    """Compare two recordings and return where their kernels stand."""
    return outcome(a, b, compare(a, b))


COLUMNS = (
    "trace",
    "edit",
    "facts",
    "precision",
    "recall",
    "aligned A",
    "aligned B",
    "false",
    "changed",
    "findings",
    "s",
    "misses",
)


def cells(row: Row) -> list[str]:
    """Return a row of the table."""
    found = row.score
    head, tail = [row.trace, row.edit, row.facts], [f"{row.seconds:.1f}", "; ".join(row.short) or "-"]
    if found is None:
        return [*head, *["-"] * 6, *tail]
    known = row.edit not in (*CUTS, "unrelated")
    return [
        *head,
        f"{found.precision:.3f}" if known else "-",
        f"{found.recall:.3f}" if known else "-",
        *(f"{share:.1%}" for share in found.aligned),
        f"{found.false:.2%}" if known else "-",
        "-" if found.changed is None else f"x{found.changed:.3f}",
        str(found.findings),
        *tail,
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(cell.replace("|", "/") for cell in cells(row)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "traces")
    parser.add_argument("--only", default="", help="the traces whose name contains this")
    parser.add_argument("--edits", nargs="+", choices=[*edits.EDITS, "unrelated"], default=[*edits.EDITS, "unrelated"])
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(options.traces, Path(work))
        for name in TRACES:
            if options.only in name:
                for row in bench.rows(name, [e for e in options.edits if e != "unrelated"]):
                    rows.append(row)
                    progress.print("  ".join(cells(row)), markup=False, soft_wrap=True)
        for pair in UNRELATED if "unrelated" in options.edits else ():
            if options.only in " | ".join(pair):
                for facts in (AS_RECORDED, BARE):
                    rows.append(bench.unrelated(pair, facts))
                    progress.print("  ".join(cells(rows[-1])), markup=False, soft_wrap=True)
    if options.markdown:
        options.markdown.write_text(markdown(rows), encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        table = Table(*COLUMNS, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*cells(row))
        Console(width=240, soft_wrap=True).print(table)
    return int(any(row.short for row in rows))


if __name__ == "__main__":
    sys.exit(main())
