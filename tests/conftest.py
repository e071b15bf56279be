"""Fixtures for all tests."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.longer import Longer
from tests.support.normalized import Normalizer

ROOT = Path(__file__).resolve().parents[1]

# Arrow looks for dateutil whenever it is given a Python value. Where dateutil is not installed, Python searches all folders each time,
# some ten thousand times a test run. An entry of None says once that there is none.
if importlib.util.find_spec("dateutil") is None:
    sys.modules["dateutil"] = None  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    """`HYPOTHESIS_PROFILE=long` gives property tests ten minutes instead of a number of examples (CONTRIBUTING.md)."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "long":
        config.pluginmanager.register(Longer(float(os.environ.get("MAGNETON_FUZZ_SECONDS", "600"))))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was collected: it stays until the end, and there is much of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tables that are made on the way out of the user's cache, and those of another checkout out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the project."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Directory of recordings too large or not ours to ship; tests that need it skip where it is absent."""
    path = Path(os.environ.get("MAGNETON_SHARED", ROOT.parent / "shared"))
    if not (path / "traces" / "FACTS.md").is_file():
        pytest.skip(f"no shared recordings at {path} (set MAGNETON_SHARED)")
    return path


@pytest.fixture(scope="session")
def normalized(tmp_path_factory: pytest.TempPathFactory) -> Normalizer:
    """``normalized(path, ...)`` normalises trace files, each once per test run, and returns a ``Run``."""
    base = tmp_path_factory.getbasetemp()
    # The processes of pytest-xdist have directories of their own below the one of the run.
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "normalized"
    directory.mkdir(exist_ok=True)
    return Normalizer(directory)
