"""Property tests for minutes instead of examples: each is repeated, on new examples, for its share of the time."""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import Any

import pytest


class Longer:
    """A pytest plugin that shares a stretch of time out among the property tests it meets.

    Args:
        seconds: for all of them together; a test that is under way when its time is up ends its round.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._share = 0.0
        self._spent: Counter[str] = Counter()
        self._examples: Counter[str] = Counter()
        self._falsified: list[str] = []
        self._now = ""
        self._counted: set[object] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Share the time out."""
        count = sum(_is_property(item) for item in session.items)
        self._share = self._seconds / count if count else 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a property test until its time is up; leave other tests alone."""
        if not _is_property(pyfuncitem):
            return None
        self._now = pyfuncitem.nodeid
        self._count(pyfuncitem.obj)
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        start = time.monotonic()
        try:
            while time.monotonic() - start < self._share:
                pyfuncitem.obj(**arguments)
        except Exception:
            self._falsified.append(self._now)
            raise
        finally:
            self._spent[self._now] += time.monotonic() - start  # type: ignore[assignment]
        return True

    def _count(self, test: Any) -> None:
        """Count the examples of a test; its function serves all its parameters."""
        function = getattr(test, "__func__", test)
        if function in self._counted:
            return
        self._counted.add(function)
        inner = function.hypothesis.inner_test

        @functools.wraps(inner)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._examples[self._now] += 1
            return inner(*args, **kwargs)

        function.hypothesis.inner_test = counted

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was run."""
        terminalreporter.section("property tests")
        for name, seconds in self._spent.items():
            terminalreporter.line(f"{self._examples[name]:8} examples in {seconds:6.1f} s  {name}")
        total, spent = self._examples.total(), sum(self._spent.values())
        terminalreporter.line(
            f"{len(self._spent)} tests, {total} examples, {spent:.0f} s, {len(self._falsified)} falsified"
        )


def _is_property(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
