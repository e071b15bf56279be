"""Fault cases of reading: JSON, compression, encodings, numbers, phases, limits. One test per expected value."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import (
    COUNTS,
    Case,
    Context,
    accept,
    accept_with_warning,
    busy_ns,
    capture,
    column,
    equal,
    op_of,
    params,
    rows,
)
from tests.support.normalized import Normalizer, Run

from magneton.schemas.errors import TruncatedInputError
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize

MINUTE_NS = 60 * 10**9


def names(context: Context, value: Any) -> None:
    assert [k["name"] for k in context.run().rows("kernels")] == value


# --- 01 begins and ends ------------------------------------------------------------------------------------------------


def parents(context: Context, value: str, key: str) -> None:
    found = rows(context.run())
    ops = {r["op_id"]: r["name"] for r in found.values() if r["table"] == "ops"}
    row = found[key]
    assert ops[row["parent_id"] if "parent_id" in row else row["op_id"]] == value


def _stray_closes_nothing(context: Context, value: Any) -> None:
    (stray,) = context.run().rows("quarantine")
    assert stray["reason"] == "end_without_begin"
    assert json.loads(stray["raw"])["tid"] == "3"
    assert rows(context.run())["e"]["dur_ns"] == 20_000


UNBALANCED = Case(
    "01-be-unbalanced",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "n_slices": lambda c, v: equal(len(c.run().rows("ops")), v),
        "n_complete": lambda c, v: equal(sum(o["dur_ns"] is not None for o in c.run().rows("ops")), v),
        "n_unterminated": lambda c, v: equal(sum(o["flags"] == "unterminated_slice" for o in c.run().rows("ops")), v),
        "dur_ns.*": column("dur_ns"),
        "parents.*": parents,
        "forbidden.0": _stray_closes_nothing,
        "forbidden.1": lambda c, v: equal(
            (rows(c.run())["c"]["dur_ns"], rows(c.run())["c"]["flags"]), (None, "unterminated_slice")
        ),
        "forbidden.2": lambda c, v: equal(
            {n: rows(c.run())[n]["tid"] for n in "abcdefk"}, dict(zip("abcdefk", "1122345", strict=True))
        ),
        "forbidden.3": lambda c, v: equal(rows(c.run())["k"]["dur_ns"], 10_000),
    },
)


# --- 02, 03, 05, 12, 15: numbers -----------------------------------------------------------------------------------------

TIMES = Case(
    "02-dur-and-ts-faults",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "dur_ns.*": column("dur_ns", "kernels"),
        "forbidden.0": lambda c, v: equal([k for k in c.run().rows("kernels") if (k["dur_ns"] or 0) < 0], []),
        "forbidden.1": lambda c, v: equal([rows(c.run())[k]["dur_ns"] for k in ("k1", "k4")], [None, None]),
        "forbidden.2": lambda c, v: equal(rows(c.run())["k5"]["dur_ns"], 400),
        "forbidden.3": lambda c, v: _below(busy_ns(c.run()), MINUTE_NS),
        "forbidden.4": lambda c, v: equal(rows(c.run())["k3"]["dur_ns"], 0),
    },
)


def _below(found: float, limit: float) -> None:
    assert found < limit


def _gap(context: Context, value: int, key: str) -> None:
    first, second = (rows(context.run())[n] for n in key.split("->"))
    assert second["ts_ns"] - first["ts_ns"] - first["dur_ns"] == value


def _no_overlap(context: Context, value: Any) -> None:
    kernels = context.run().rows("kernels")
    assert sum(a["ts_ns"] + a["dur_ns"] > b["ts_ns"] for a, b in itertools.pairwise(kernels)) == (
        value if isinstance(value, int) else 0
    )


PRECISION = Case(
    "03-ts-ns-precision",
    COUNTS
    | {
        "verdict": accept,
        "ts_ns.*": column("ts_ns"),
        "dur_ns.*": column("dur_ns"),
        "gap_ns.*": _gap,
        "overlaps": _no_overlap,
        "forbidden.0": lambda c, v: equal([rows(c.run())[k]["ts_ns"] % 1000 for k in ("k1", "k2")], [1, 257]),
        "forbidden.1": _no_overlap,
    },
)


def _strings_kept(context: Context, value: Any) -> None:
    assert {k["name"] for k in context.run().rows("kernels")} == {"s1", "s2", "s3"}


STRINGS = Case(
    "05-ts-as-strings",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "ts_ns.*": column("ts_ns"),
        "dur_ns.*": column("dur_ns"),
        "n_processes": lambda c, v: equal(len({k["pid"] for k in c.run().rows("kernels")}), v),
        "n_tracks_with_kept_events": lambda c, v: equal(
            len({(k["pid"], k["tid"]) for k in c.run().rows("kernels")}), v
        ),
        "forbidden.*": _strings_kept,
    },
)

NOT_FINITE_FILES = ("python_style.json", "printf_style.json")
NULL_ARGS = {"est. achieved occupancy %": "occupancy_percent"}


def _numbers_finite(context: Context, value: Any) -> None:
    for file in NOT_FINITE_FILES:
        for row in context.run(file).rows("kernels"):
            assert all(math.isfinite(v) for v in row.values() if isinstance(v, float))


def _args_null(context: Context, value: list[str]) -> None:
    # Bandwidth and warps are not columns of ours: nothing of them can reach a number. Occupancy is one.
    run = context.run("python_style.json")
    assert run.warnings()["args_not_finite"] == 2
    known = {a: NULL_ARGS[a] for a in value if a in NULL_ARGS}
    assert known
    for column_name in known.values():
        assert all(k[column_name] is None for k in run.rows("kernels"))


def _printf_like_python(context: Context, value: Any) -> None:
    a, b = (context.run(f).rows("kernels") for f in NOT_FINITE_FILES)
    assert [r | {"run_id": ""} for r in a] == [r | {"run_id": ""} for r in b]


def _no_nan_written(context: Context, value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for file in NOT_FINITE_FILES:
        json.loads((context.run(file).path / "manifest.json").read_text(), parse_constant=refuse)


NOT_FINITE = Case(
    "12-nan-infinity-literals",
    {
        "python_style.json.verdict": lambda c, v: equal(
            "args_not_finite" in c.run("python_style.json").warnings(), True
        ),
        "python_style.json.n_kept": lambda c, v: equal(capture(c.run("python_style.json"))["n_kept"], v),
        "python_style.json.n_quarantined": lambda c, v: equal(capture(c.run("python_style.json"))["n_quarantined"], v),
        "python_style.json.quarantine_reasons.ts_not_finite": lambda c, v: equal(
            [r["reason"] for r in c.run("python_style.json").rows("quarantine")], ["ts_not_finite"] * v
        ),
        "python_style.json.busy_ns": lambda c, v: equal(busy_ns(c.run("python_style.json")), v),
        "python_style.json.args_null": _args_null,
        "printf_style.json.verdict": _printf_like_python,
        "forbidden.0": _numbers_finite,
        "forbidden.1": _printf_like_python,
        "forbidden.2": _no_nan_written,
    },
)


def _huge_argument(context: Context, value: Any, key: str) -> None:
    row = rows(context.run())["nccl"]
    assert {"bytes": row["bytes"], "Comms Id": json.loads(row["collective"])["comms_id"]}[
        key.removeprefix("nccl.")
    ] == value


HUGE = Case(
    "15-huge-integers",
    COUNTS
    | {
        "verdict": accept,
        "args.*": _huge_argument,
        "forbidden.0": lambda c, v: equal(op_of(c.run(), "k_none"), None),
        "forbidden.1": lambda c, v: equal([op_of(c.run(), k) for k in ("k_a", "k_b")], ["op_a", "op_b"]),
        "forbidden.2": accept,
    },
)

# --- 04, 06, 07: the shape of the document -------------------------------------------------------------------------------


def _absolute(context: Context, value: int, key: str) -> None:
    assert capture(context.run())["base_unix_ns"] + rows(context.run())[key]["ts_ns"] == value


METADATA = Case(
    "04-metadata-after-events",
    COUNTS
    | {
        "verdict": accept,
        "rank": lambda c, v: equal(capture(c.run())["rank"], v),
        "world_size": lambda c, v: equal(capture(c.run())["world_size"], v),
        "clock": lambda c, v: equal(capture(c.run())["clock"], v),
        "ts_ns_rel.*": column("ts_ns"),
        "ts_ns_abs.*": _absolute,
        "dur_ns.*": column("dur_ns"),
        "forbidden.0": lambda c, v: _absolute(c, 1718000000002049129, "aten::a"),
        "forbidden.1": lambda c, v: equal(rows(c.run())["aten::a"]["dur_ns"], 1500),
        "forbidden.2": lambda c, v: equal(capture(c.run())["rank"], 3),
    },
)

SHAPES = ("closed_array.json", "open_array.json", "object.json", "object_crlf_bom.json")


def _shape_verdict(context: Context, value: str, file: str) -> None:
    found = set(context.run(file).warnings())
    if value == "accept":
        assert not found
    else:
        assert value.partition("(")[2].rstrip(")") in found
        assert "maybe_incomplete" in found


def _shapes_agree(context: Context, value: Any) -> None:
    for table in ("ops", "launches", "kernels"):
        found = [[r | {"run_id": ""} for r in context.run(f).rows(table)] for f in SHAPES]
        assert all(f == found[0] for f in found)


SHAPE = Case(
    "06-toplevel-array-or-object",
    {
        "verdict.*": _shape_verdict,
        "n_kept_each": lambda c, v: equal([capture(c.run(f))["n_kept"] for f in SHAPES], [v] * 4),
        "event_tables_identical": _shapes_agree,
        "links.gemm": lambda c, v: equal({op_of(c.run(f), "gemm") for f in SHAPES}, {v}),
        "kernel_busy_ns": lambda c, v: equal({busy_ns(c.run(f)) for f in SHAPES}, {v}),
    },
)


def _salvaged(context: Context) -> Run:
    return context.run(allow_truncated=True)


def _never_unflagged(context: Context, value: Any) -> None:
    with pytest.raises(TruncatedInputError):
        context.run()
    assert _salvaged(context).manifest.incomplete


TRUNCATED = Case(
    "07-truncated-json-object",
    {
        "verdict": lambda c, v: equal(c.error().path, str(c.file())),
        "error": lambda c, v: equal(c.error().code, v),
        "salvage_mode.verdict": lambda c, v: equal("truncated" in _salvaged(c).warnings(), True),
        "salvage_mode.n_kept": lambda c, v: equal(capture(_salvaged(c))["n_kept"], v),
        "salvage_mode.names": lambda c, v: equal(
            [r["name"] for t in ("ops", "kernels") for r in _salvaged(c).rows(t)], v
        ),
        "salvage_mode.run_flag": lambda c, v: equal(capture(_salvaged(c))[v], True),
        "salvage_mode.kernel_busy_ns": lambda c, v: equal(busy_ns(_salvaged(c)), v),
        "forbidden.0": _never_unflagged,
        "forbidden.1": lambda c, v: equal("k3" in _salvaged(c).by_name("kernels"), False),
    },
)

# --- 13: text -------------------------------------------------------------------------------------------------------------


def _deterministic(context: Context, value: Any) -> None:
    again = normalize([context.file()], context.tmp_path / "again", NormalizeOptions(keep_raw=False))
    assert Run(context.tmp_path / "again", again).rows("kernels") == context.run().rows("kernels")


ENCODING = Case(
    "13-invalid-utf8-and-surrogates",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "names": names,
        "parquet_strings_valid_utf8": lambda c, v: equal(all(k["name"].encode() for k in c.run().rows("kernels")), v),
        "deterministic_between_runs": _deterministic,
        "forbidden.0": lambda c, v: equal(capture(c.run())["n_kept"], 7),
        "forbidden.1": accept_with_warning,
        "forbidden.2": _deterministic,
    },
)

# --- 18, 19, 20: no events, odd events ------------------------------------------------------------------------------------


def _refused(file: str) -> Any:
    return lambda c, v: equal(c.error(file).code, "InputFormatError")


def _empty(context: Context, value: Any, key: str) -> None:
    file, _, what = key.rpartition(".")
    run = context.run(file)
    if what == "n_kept":
        assert capture(run)["n_kept"] == value
    else:
        assert set(run.warnings()) == {"no_events"}


NO_EVENTS = Case(
    "18-zero-events",
    {
        f: _refused(f)
        for f in (
            "empty_file.json",
            "blank.json",
            "no_key.json",
            "null_events.json",
            "not_object.json",
            "xplane_zero.json.gz",
        )
    }
    | {
        "empty_*": lambda c, v, k: _empty(c, v, f"empty_{k}"),
        "forbidden.0": lambda c, v: equal(capture(c.run("empty_list.json"))["ts_ns"], None),
        "forbidden.2": lambda c, v: equal(capture(c.run("empty_array.json"))["dur_ns"], None),
    },
)


def _process(context: Context, value: str, key: str) -> None:
    pid, what = key.split(".")
    assert json.loads(capture(context.run())["metadata"])["processes"][pid][what] == value


METADATA_ONLY = Case(
    "19-metadata-only",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "n_slices": lambda c, v: equal(
            sum(len(c.run().rows(t)) for t in ("ops", "frames", "annotations", "kernels")), v
        ),
        "processes.*": _process,
        "threads.*": lambda c, v, k: equal(json.loads(capture(c.run())["metadata"])["threads"][k], v),
        "forbidden.0": accept_with_warning,
    },
)


def _async(context: Context, value: int, key: str) -> None:
    run = context.run()
    spans = [a for a in run.rows("annotations") if a["kind"] == "async" and a["dur_ns"] is not None]
    inside = [a for a in run.rows("annotations") if a["kind"] == "async_instant"]
    assert {"ts_ns": spans[0]["ts_ns"], "dur_ns": spans[0]["dur_ns"], "instants": len(inside)}[key] == value


def _kinds(*kinds: str) -> Any:
    return lambda c, v: equal(sum(a["kind"] in kinds for a in c.run().rows("annotations")), v)


ODD = Case(
    "20-odd-phases-and-empty-objects",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "n_slices": lambda c, v: equal(
            len(c.run().rows("kernels")) + sum(a["kind"] == "slice" for a in c.run().rows("annotations")), v
        ),
        "n_counter_samples": lambda c, v: equal(len(c.run().rows("counters")), v),
        "n_instants": _kinds("instant"),
        "n_async_complete": lambda c, v: equal(
            sum(a["kind"] == "async" and a["dur_ns"] is not None for a in c.run().rows("annotations")), v
        ),
        "async.r1.*": _async,
        "n_async_unterminated": lambda c, v: equal(c.run().warnings()["unterminated_async"], v),
        "n_other_known_phases_kept_or_ignored": _kinds("object", "sample"),
        "forbidden.0": accept_with_warning,
        "forbidden.1": lambda c, v: equal(
            [a["parent_id"] for a in c.run().rows("annotations") if a["kind"] == "async"], [None, None]
        ),
    },
)

CASES = (
    UNBALANCED, TIMES, PRECISION, METADATA, STRINGS, SHAPE, TRUNCATED, NOT_FINITE, ENCODING, HUGE,
    NO_EVENTS, METADATA_ONLY, ODD,
)  # fmt: skip


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
