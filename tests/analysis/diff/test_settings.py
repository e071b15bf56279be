"""Settings of a diff: what makes no sense is refused where they are made, whoever makes them."""

from __future__ import annotations

from typing import Any

import pytest

from magneton.analysis.diff.settings import DiffSettings
from magneton.schemas.errors import UsageError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"per": "sample"},
        {"per": "token"},
        {"threshold_percent": 0.001},
        {"threshold_percent": 5},
        {"min_share_percent": 0},
        {"min_share_percent": 100},
        {"skip_steps": 0, "all_steps": True},
        {"rank": 0},
        {"min_power_coverage": 0},
        {"min_power_coverage": 1.0},
        {"idle_power_a": 0, "idle_power_b": 12.5},
    ],
)
def test_settings_that_make_sense(given: dict[str, Any]) -> None:
    settings = DiffSettings(**given)
    assert {name: getattr(settings, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"per": "bogus"}, "per is 'bogus'"),
        ({"per": None}, "per is None"),
        ({"per": ["step"]}, r"per is \['step'\]"),
        ({"skip_steps": -2}, "skip_steps is -2"),
        ({"skip_steps": 1.0}, "skip_steps is 1.0"),
        ({"skip_steps": True}, "skip_steps is True"),
        ({"skip_steps": "1"}, "skip_steps is '1'"),
        ({"skip_steps": 1, "all_steps": True}, "skip_steps is 1 and all_steps is set"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": 0.5}, "rank is 0.5"),
        *[({"threshold_percent": x}, "threshold_percent is ") for x in (NAN, INF, -1.0, 0.0, "10", None)],
        *[({"min_share_percent": x}, "min_share_percent is ") for x in (NAN, INF, -0.5, 100.5)],
        *[({"min_power_coverage": x}, "min_power_coverage is ") for x in (NAN, INF, -0.1, 1.5, None)],
        *[({name: x}, f"{name} is ") for name in ("idle_power_a", "idle_power_b") for x in (NAN, INF, -3.0, "5")],
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        DiffSettings(**given)
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_numbers_of_numpy_are_numbers() -> None:
    np = pytest.importorskip("numpy")
    settings = DiffSettings(skip_steps=np.int64(2), threshold_percent=np.float32(5), rank=np.int32(0))
    assert (type(settings.skip_steps), type(settings.threshold_percent), settings.rank) == (int, float, 0)
