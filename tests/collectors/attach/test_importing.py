"""The recorder hears of the import of a framework whatever the program does around it."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from magneton.collectors.attach.importing import after_import


class First:
    """A finder of somebody else, who came later and asks all the others."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return next((s for f in sys.meta_path if f is not self and (s := f.find_spec(name, path, target))), None)


def probe() -> None:
    for _ in range(3):
        assert importlib.util.find_spec("framework") is not None


def probe_a_child() -> None:
    assert importlib.util.find_spec("framework.nn") is not None


def in_a_thread() -> None:
    thread = threading.Thread(target=importlib.import_module, args=("framework",))
    thread.start()
    thread.join()


def by_hand() -> None:
    spec = importlib.util.find_spec("framework")
    assert spec is not None and isinstance(spec.loader, SourceFileLoader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["framework"] = module
    spec.loader.exec_module(module)


def lazily() -> None:
    spec = importlib.util.find_spec("framework")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["framework"] = module
    spec.loader.exec_module(module)
    assert module.answer == 42


def after_a_failure() -> None:
    sys.modules["framework_needs"] = None  # type: ignore[assignment]
    with pytest.raises(ImportError):
        importlib.import_module("framework")
    del sys.modules["framework_needs"]


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework" / "__init__.py").write_text(
        "import sys\nif 'framework_needs' in sys.modules:\n    import framework_needs\nimport framework.nn\nanswer = 42\n"
    )
    (tmp_path / "framework" / "nn.py").write_text("import framework\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in ("framework", "framework.nn"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("before", [probe, probe_a_child, in_a_thread, by_hand, lazily, after_a_failure, lambda: None])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.usefixtures("framework")
def test_the_end_of_an_import_is_told_once(before: Callable[[], None], other: bool) -> None:
    told: list[tuple[ModuleType, int]] = []
    finders = list(sys.meta_path)
    after_import("framework", lambda module: told.append((module, module.answer)))
    if other:
        sys.meta_path.insert(0, First())  # type: ignore[arg-type]
    before()
    importlib.import_module("framework")
    pkgutil.resolve_name("framework.nn:framework")
    importlib.import_module("framework")
    assert told == [(sys.modules["framework"], 42)]
    assert [f for f in sys.meta_path if not isinstance(f, First)] == finders, "nothing stays behind"


@pytest.mark.usefixtures("framework")
def test_a_module_that_is_there_is_told_at_once_and_a_missing_one_never() -> None:
    importlib.import_module("framework")
    told: list[str] = []
    after_import("framework", lambda module: told.append(module.__name__))
    after_import("not_there_at_all", lambda module: told.append(module.__name__))
    assert importlib.util.find_spec("not_there_at_all") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_there_at_all")
    assert told == ["framework"]
