"""The check for machines with a GPU: how its stages fail, and what it leaves."""

from __future__ import annotations

import json
import sys
import time
import zipfile

import pytest
from benchmarks import gpu_check


def test_a_stage_that_fails_says_why_and_the_next_one_runs():
    def broken() -> None:
        raise RuntimeError("no such thing")

    done = gpu_check.run_stage(broken, 5)
    assert (done["ok"], done["reason"]) == (False, "RuntimeError: no such thing")
    assert gpu_check.run_stage(lambda: {"a": 1}, 5)["result"] == {"a": 1}


def test_a_stage_that_takes_too_long_is_ended():
    started = time.monotonic()
    done = gpu_check.run_stage(lambda: time.sleep(30), 0.2)
    assert not done["ok"] and "longer than" in done["reason"]
    assert time.monotonic() - started < 5


def test_interrupting_it_ends_it():
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpu_check.run_stage(interrupted, 5)


def test_what_is_too_large_or_too_many_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "MAX_FILE_BYTES", 100)
    for i in range(9):
        (tmp_path / f"small{i}").write_bytes(b"x" * i)
    (tmp_path / "large").write_bytes(b"x" * 101)
    removed = gpu_check.keep_within_limits(tmp_path)
    assert [r.split(":")[0] for r in removed] == ["large", "small8"]
    assert len(list(tmp_path.iterdir())) == 8


def test_carried_wheels_come_after_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with zipfile.ZipFile(tmp_path / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_for_a_test.py", "x = 1\n")
    gpu_check.unpack_wheels(tmp_path, tmp_path / "site")
    assert sys.path[-1] == str(tmp_path / "site")
    assert (tmp_path / "site" / "carried_for_a_test.py").is_file()


def test_results_hold_no_nan(tmp_path):
    gpu_check.write(tmp_path / "r.json", {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": None}})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": None, "b": [None, 1.5], "c": {"d": None}}


def test_every_stage_exists_and_fits_the_time():
    assert sum(seconds for _, _, seconds in gpu_check.STAGES) >= gpu_check.DEFAULT_BUDGET_S
    assert gpu_check.DEFAULT_BUDGET_S <= 600
