"""The fault cases, value by value: each value of an ``expected.md`` is one test, met by a checker found by its path.

A path names a value in the JSON block: ``dur_ns.a``, ``object.json.verdict``, ``forbidden.0``. A test module claims
values of a case by patterns of paths: with a checker, or as a strict expected failure with the reason, where what they
ask for is not built yet. Several modules may share a case; ``test_faults_complete`` fails for a value that nobody
claims, or that two do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.normalized import Normalizer, Run

from magneton.flows.traces import ExtraFiles
from magneton.schemas import errors
from magneton.transforms.job import NormalizeOptions

FAULTS = Path(__file__).resolve().parents[1] / "faults" / "cases"

# Why a value is an expected failure: what it waits for.
ARCHIVES = "archives and redaction: a later issue"
HTML = "HTML report: a later issue"
CAUSES = "causes of a difference: a later issue"
REASONS = (ARCHIVES, HTML, CAUSES)


def expected(name: str) -> dict[str, Any]:
    """The JSON block of a case's expected.md."""
    text = (FAULTS / name / "expected.md").read_text()
    found: dict[str, Any] = json.loads(text.split("```json", 1)[1].split("```", 1)[0])
    return found


def values(name: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything that is expected; alternatives are documentation."""
    yield from _walk("", {k: v for k, v in expected(name).items() if k != "accepted_alternatives"})


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if key != "accepted_alternatives":
                yield from _walk(f"{path}.{key}" if path else key, inner)
    elif path == "forbidden":
        for number, inner in enumerate(value):
            yield f"{path}.{number}", inner
    else:
        yield path, value


@dataclass
class Context:
    """One case under test: normalises its files on demand."""

    name: str
    normalized: Normalizer
    tmp_path: Path
    options: NormalizeOptions = field(default_factory=lambda: NormalizeOptions(keep_raw=False))

    @property
    def directory(self) -> Path:
        return FAULTS / self.name

    def file(self, name: str | None = None) -> Path:
        if name is not None:
            return self.directory / name
        return next(self.directory / n for n in ("trace.json", "trace.json.gz") if (self.directory / n).is_file())

    def run(self, name: str | None = None, **options: Any) -> Run:
        """Normalise one file (or folder) of the case."""
        return self.normalized(self.file(name), options=replace(self.options, **options))

    def powered(self, trace: str | None = None, *logs: str, anchors: str | None = None, **options: Any) -> Run:
        """Normalise one file of the case together with power logs of it (``power.csv``)."""
        extras = ExtraFiles(
            power=[self.file(log) for log in logs or ("power.csv",)],
            anchors=None if anchors is None else self.file(anchors),
        )
        return self.normalized(self.file(trace), options=replace(self.options, **options), extras=extras)

    def error(self, name: str | None = None, **options: Any) -> errors.MagnetonError:
        """Return the error a file is refused with."""
        with pytest.raises(errors.MagnetonError) as caught:
            self.run(name, **options)
        text = str(caught.value)
        assert "\n" not in text, "one line"
        assert caught.value.exit_code == errors.EXIT_BAD_INPUT
        return caught.value


Check = Callable[[Context, Any], None]
KeyedCheck = Callable[[Context, Any, str], None]


@dataclass(frozen=True)
class Case:
    """Values of one case: checkers, and reasons for what is not built yet, by pattern of path (``*`` matches any rest).

    ``COUNTS`` holds checkers of many cases: a pattern need not occur in the case.
    """

    name: str
    checks: Mapping[str, Check | KeyedCheck]
    later: Mapping[str, str] = field(default_factory=dict)

    def reason(self, path: str) -> str | None:
        """Return what a value waits for, or None."""
        return next((r for p, r in self.later.items() if _matches(path, p)), None)

    def claims(self, path: str) -> bool:
        """Tell whether a value is tested here, as one that holds or as one that does not yet."""
        return self.reason(path) is not None or any(_matches(path, pattern) for pattern in self.checks)

    def params(self) -> list[Any]:
        """One test per claimed value."""
        out = []
        for path, value in values(self.name):
            if self.claims(path):
                reason = self.reason(path)
                marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]
                out.append(pytest.param(self, path, value, id=f"{self.name}:{path}", marks=marks))
        return out

    def check(self, context: Context, path: str, value: Any) -> None:
        """Meet one value."""
        for pattern, check in self.checks.items():
            if _matches(path, pattern):
                key = path[len(pattern) - 1 :] if pattern.endswith("*") else path
                if check.__code__.co_argcount == 3:  # type: ignore[attr-defined]
                    check(context, value, key)  # type: ignore[call-arg, arg-type]
                else:
                    check(context, value)  # type: ignore[call-arg, arg-type]
                return
        pytest.fail(f"nobody checks {path} = {value!r}")


def _matches(path: str, pattern: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def params(*cases: Case) -> list[Any]:
    """The tests of several cases."""
    return [p for case in cases for p in case.params()]


# --- neutral names -> our tables ---------------------------------------------------------------------------------------


def equal(found: Any, wanted: Any) -> None:
    """Compare exactly."""
    assert found == wanted


def close(found: Any, wanted: Any, rel: float = 1e-9) -> None:
    """Compare within a relative tolerance; NULL only equals NULL."""
    assert found == (None if wanted is None else pytest.approx(wanted, rel=rel))


def rows(run: Run) -> dict[str, dict[str, Any]]:
    """Rows of all event tables by name."""
    return {
        row["name"]: row | {"table": table}
        for table in ("frames", "ops", "launches", "kernels", "annotations")
        for row in run.rows(table)
    }


def capture(run: Run) -> dict[str, Any]:
    """The row of ``captures``. Several processes in one file are several ranks: their counts are added up."""
    first, *others = run.rows("captures")
    counts = [name for name in first if name.startswith("n_")]
    return first | {name: first[name] + sum(row[name] for row in others) for name in counts}


def busy_ns(run: Run) -> int:
    """Union of the intervals of all device activities."""
    total, reached = 0, -(2**63)
    spans = [(k["ts_ns"], k["ts_ns"] + k["dur_ns"]) for k in run.rows("kernels") if k["dur_ns"] is not None]
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def op_of(run: Run, kernel: str) -> str | None:
    """Name of the operator a kernel belongs to."""
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")}
    return ops.get(run.by_name("kernels")[kernel]["op_id"])


def kernel_ns_by_op(run: Run) -> dict[str, int]:
    """Device time by name of the operator it belongs to."""
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")}
    out: dict[str, int] = {}
    for k in run.rows("kernels"):
        if k["op_id"] is not None:
            out[ops[k["op_id"]]] = out.get(ops[k["op_id"]], 0) + k["dur_ns"]
    return out


def accept(context: Context, value: Any) -> None:
    """``verdict: accept``."""
    run = context.run()
    assert (run.path / "manifest.json").is_file()
    assert capture(run)["n_quarantined"] == 0


def accept_with_warning(context: Context, value: Any) -> None:
    """``verdict: accept_with_warning``."""
    assert context.run().warnings()


def counted(column: str) -> Check:
    """A count of the capture."""

    def check(context: Context, value: Any) -> None:
        row = capture(context.run())
        assert row[column] == value
        assert row["n_raw"] == row["n_kept"] + row["n_merged"] + row["n_ignored"] + row["n_quarantined"]

    return check


def quarantined(context: Context, value: Any, reason: str) -> None:
    """``quarantine_reasons.<reason>``."""
    found = [r for r in context.run().rows("quarantine") if r["reason"] == reason]
    assert len(found) == value
    assert all(r["raw"] for r in found)


def column(name: str, table: str | None = None) -> KeyedCheck:
    """``<column>.<name of row>``."""

    def check(context: Context, value: Any, key: str) -> None:
        run = context.run()
        row = rows(run)[key] if table is None else run.by_name(table)[key]
        assert row[name] == value

    return check


def busy(context: Context, value: Any) -> None:
    """``kernel_busy_ns``."""
    assert busy_ns(context.run()) == value


def link(context: Context, value: Any, kernel: str) -> None:
    """``links.<kernel>``: name of its operator."""
    assert op_of(context.run(), kernel) == value


def warned(context: Context, value: Any) -> None:
    """``warnings: [...]`` or ``warning: ...``."""
    for code in value if isinstance(value, list) else [value]:
        assert code in context.run().warnings()


COUNTS: dict[str, Check | KeyedCheck] = {
    "n_raw": counted("n_raw"),
    "n_kept": counted("n_kept"),
    "n_quarantined": counted("n_quarantined"),
    "n_ignored_empty": counted("n_ignored"),
    "quarantine_reasons.*": quarantined,
    "kernel_busy_ns": busy,
    "busy_ns": busy,
    "links.*": link,
    "warnings": warned,
    "warning": warned,
}
