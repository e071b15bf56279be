"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.longer import Longer
from tests.support.normalized import Normalizer

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """`HYPOTHESIS_PROFILE=long` gives property tests ten minutes instead of a number of examples (CONTRIBUTING.md)."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "long":
        config.pluginmanager.register(Longer(float(os.environ.get("MAGNETON_FUZZ_SECONDS", "600"))))


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
    """``normalized(path, ...)`` normalises trace files, each once per session, and returns a ``Run``."""
    return Normalizer(tmp_path_factory.mktemp("normalized"))
