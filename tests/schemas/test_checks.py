"""Settings that make no sense are refused by the library, in one sentence with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magneton.analysis.diff.one_side import MeasureSettings
from magneton.analysis.diff.settings import DiffSettings
from magneton.collectors.attach.launch import Launch
from magneton.flows.extras import ExtraFiles
from magneton.flows.repeat import RepeatSettings
from magneton.schemas.checks import need_number, need_one_of, need_whole, path_of, paths_of
from magneton.schemas.errors import UsageError
from magneton.schemas.manifest import Workload
from magneton.transforms.bench.result import BenchOptions
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.power.log import PowerOptions

NAN, INF = float("nan"), float("inf")
WRONG: list[tuple[Callable[..., Any], str, list[Any]]] = [
    (DiffSettings, "per", ["bogus", "", None]),
    (DiffSettings, "threshold_percent", [0, -1, NAN, INF, "10"]),
    (DiffSettings, "min_share_percent", [-1, 101, NAN]),
    (DiffSettings, "skip_steps", [-2, 1.5, True]),
    (DiffSettings, "rank", [-1]),
    (DiffSettings, "min_power_coverage", [-0.1, 1.1, NAN]),
    (DiffSettings, "idle_power_a", [-1, NAN, INF]),
    (MeasureSettings, "skip_steps", [-2]),
    (MeasureSettings, "min_power_coverage", [2]),
    (MeasureSettings, "idle_power", [-1, NAN]),
    (NormalizeOptions, "max_event_dur_ns", [-1, 1.5, NAN]),
    (NormalizeOptions, "max_decompressed_bytes", [-1]),
    (NormalizeOptions, "max_ratio", [0.5, NAN, INF]),
    (NormalizeOptions, "ratio_floor_bytes", [-1]),
    (NormalizeOptions, "memory_limit_mb", [63, 0, "256"]),
    (Launch, "warmup_steps", [-1, 0.5]),
    (Launch, "steps", [0, -1]),
    (Launch, "value_steps", [0]),
    (RepeatSettings, "times", [1]),
    (RepeatSettings, "window_s", [0, NAN, INF]),
    (RepeatSettings, "rounds", [1]),
    (RepeatSettings, "copies", [0]),
    (RepeatSettings, "warmup_steps", [0]),
    (PowerOptions, "clock", ["wall"]),
    (PowerOptions, "offset_ns", [1.5, NAN]),
    (PowerOptions, "at_unix_ns", ["now"]),
    (PowerOptions, "date_order", ["ymd"]),
    (BenchOptions, "index", [1.0]),
    (BenchOptions, "date_order", ["ymd"]),
    (ExtraFiles, "bench_index", ["0"]),
]


@pytest.mark.parametrize(
    ("made", "name", "value"), [(made, name, value) for made, name, values in WRONG for value in values]
)
def test_a_setting_that_makes_no_sense(made: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(UsageError) as refused:
        made(**{name: value})
    assert str(refused.value).startswith(f"{name} is ")
    assert refused.value.remedy


@pytest.mark.parametrize("made", [PowerOptions, BenchOptions])
def test_a_zone_that_does_not_exist(made: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="unknown time zone 'Mars/North'") as refused:
        made(tz="Mars/North")
    assert refused.value.remedy


@pytest.mark.parametrize("field", ["batch", "input_tokens"])
def test_work_that_is_none(field: str) -> None:
    with pytest.raises(UsageError, match=f"{field} is 0"):
        Launch(workload=Workload(**{field: 0}))


def test_what_is_allowed_is_returned() -> None:
    assert need_number("x", 3, least=3, most=3) == 3.0
    assert need_whole("x", 0, least=0) == 0
    need_one_of("x", "a", ("a", "b"))
    assert path_of("x", "a/b") == path_of("x", Path("a/b")) == Path("a/b")
    assert paths_of("x", "ab") == [Path("ab")]
    assert paths_of("x", ["a", Path("b")]) == [Path("a"), Path("b")]


@pytest.mark.parametrize("value", ["", None, 3, b"bytes"])
def test_what_is_no_path(value: Any) -> None:
    with pytest.raises(UsageError, match="x is ") as refused:
        path_of("x", value)
    assert refused.value.remedy


def test_the_sentences() -> None:
    with pytest.raises(UsageError) as refused:
        need_number("coverage", 1.5, least=0, most=1)
    assert str(refused.value) == "coverage is 1.5 (give a number, at least 0 and at most 1)"
    with pytest.raises(UsageError) as refused:
        need_number("watts", NAN)
    assert str(refused.value) == "watts is nan (give a number, finite)"
    with pytest.raises(UsageError) as refused:
        need_whole("rank", -1, least=0)
    assert str(refused.value) == "rank is -1 (give a whole number, at least 0)"
