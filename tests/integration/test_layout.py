"""The layout that packaging, type checking and the import contract stand on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STAGES = ("cli", "collectors", "transforms", "analysis", "schemas")
PACKAGES = {f"{stage}/magneton/{stage}" for stage in STAGES} | {"cli/magneton/flows"}
LONGEST = 500
# Modules and subfolders of one folder that are still taken in at a glance.
FULLEST = 16


def tracked(root: Path) -> Iterator[Path]:
    """Yield the files of the project, as git knows them or, outside a clone, as they lie."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True
    )
    if listed.returncode == 0 and listed.stdout:
        names = [n.decode("utf-8", "surrogateescape") for n in listed.stdout.split(b"\0") if n]
        yield from (p for n in names if (p := root / n).is_file())
    else:
        skipped = {".venv", ".git", "__pycache__", "out", "dist"}
        yield from (p for p in root.rglob("*") if p.is_file() and not skipped & set(p.relative_to(root).parts))


def modules(root: Path, *folders: str) -> list[Path]:
    return sorted(p for p in tracked(root) if p.suffix == ".py" and p.relative_to(root).parts[0] in folders)


def test_the_namespace_has_no_init(root: Path) -> None:
    """One stray ``magneton/__init__.py`` would hide every other stage."""
    found = [p for stage in STAGES for p in root.glob(f"{stage}/magneton/__init__.py*")]
    assert found == []
    for stage in STAGES:
        assert {p.name for p in (root / stage).iterdir() if p.name != "__pycache__"} == {"magneton"}


def test_every_package_is_typed(root: Path) -> None:
    found = {str(p.parent.relative_to(root)) for stage in STAGES for p in root.glob(f"{stage}/magneton/*/__init__.py")}
    assert found == PACKAGES
    for package in PACKAGES:
        assert (root / package / "py.typed").is_file(), package


def test_the_namespace_holds_packages_and_the_way_to_start_them(root: Path) -> None:
    """``magneton/__main__.py`` makes ``python -m magneton`` work. An ``__init__.py`` would hide the stages; this file hides nothing."""
    held = {
        str(p.relative_to(root))
        for stage in STAGES
        for p in (root / stage / "magneton").iterdir()
        if p.name != "__pycache__"
    }
    assert held == PACKAGES | {"cli/magneton/__main__.py"}


def test_modules_stay_readable(root: Path) -> None:
    lengths = {
        str(p.relative_to(root)): len(p.read_text().splitlines())
        for p in modules(root, *STAGES, "benchmarks", "examples")
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def names_used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield f"{node.func.id}()"
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


def test_nothing_prints_evaluates_or_unpickles(root: Path) -> None:
    forbidden = {"print()", "eval()", "exec()", "pickle", "marshal", "shelve", "dill"}
    for path in modules(root, *STAGES):
        used = forbidden & set(names_used(ast.parse(path.read_bytes())))
        assert not used, f"{path.relative_to(root)} uses {used}"


def test_only_collectors_know_frameworks(root: Path) -> None:
    frameworks = {"torch", "jax", "tensorflow", "onnx", "onnxruntime", "transformers", "pynvml", "triton"}
    for path in modules(root, "cli", "transforms", "analysis", "schemas"):
        used = frameworks & set(names_used(ast.parse(path.read_bytes())))
        assert not used, f"{path.relative_to(root)} imports {used}"


def module_names(root: Path) -> dict[str, Path]:
    """Return the modules of the product by their dotted names; a package is named like its folder."""
    names = {}
    for path in modules(root, *STAGES):
        parts = path.relative_to(root / path.relative_to(root).parts[0]).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def module_imports(names: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield which module names which in an import statement, also inside a function or for type checking."""
    for name, path in names.items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names if alias.name in names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    target = inner if inner in names else node.module
                    if target in names and target != name:
                        yield name, str(target)


def circle(edges: set[tuple[str, str]]) -> list[str]:
    """Return one circle among directed edges, or an empty list where there is none."""
    after: dict[str, list[str]] = {}
    for a, b in sorted(edges):
        after.setdefault(a, []).append(b)
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for target in after.get(path[-1], []):
            if target in path:
                return [*path[path.index(target) :], target]
            if target not in done and (found := search([*path, target])):
                return found
        done.add(path[-1])
        return []

    return next((found for start in sorted(after) if start not in done and (found := search([start]))), [])


def between(folder: str, edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the imports between what lies directly in a folder: modules, and subfolders with all they hold."""
    inside = f"{folder}."
    pairs = {
        (a.removeprefix(inside).split(".")[0], b.removeprefix(inside).split(".")[0])
        for a, b in edges
        if a.startswith(inside) and b.startswith(inside)
    }
    return {(a, b) for a, b in pairs if a != b}


def test_circles_are_found() -> None:
    assert circle({("a", "b"), ("b", "c"), ("a", "c")}) == []
    assert circle({("a", "b"), ("b", "c"), ("c", "b")}) == ["b", "c", "b"]
    assert circle({("p.x.one", "p.y.one"), ("p.y.two", "p.x.two")}) == []
    assert circle(between("p", {("p.x.one", "p.y.one"), ("p.y.two", "p.x.two")})) == ["x", "y", "x"]


@pytest.fixture(scope="module")
def imports(root: Path) -> set[tuple[str, str]]:
    """Which module of the product imports which."""
    return set(module_imports(module_names(root)))


def test_no_modules_import_each_other(imports: set[tuple[str, str]]) -> None:
    assert circle(imports) == []


def test_no_rooms_import_each_other(root: Path, imports: set[tuple[str, str]]) -> None:
    """A room may be read alone: what it needs lies in rooms that do not need it. This holds in every folder."""
    folders = {name.rpartition(".")[0] for name in module_names(root)}
    found = {folder: circle(between(folder, imports)) for folder in folders - {"magneton"}}
    assert {folder: rooms for folder, rooms in found.items() if rooms} == {}


def test_folders_are_taken_in_at_a_glance(root: Path) -> None:
    held: dict[Path, set[Path]] = {}
    for path in modules(root, *STAGES):
        if path.name != "__init__.py":
            held.setdefault(path.parent, set()).add(path)
        # What a folder holds counts for the folder above as one.
        held.setdefault(path.parent.parent, set()).add(path.parent)
    full = {str(folder.relative_to(root)): len(inside) for folder, inside in held.items() if len(inside) > FULLEST}
    assert full == {}


def test_stages_do_not_import_each_other(imports: set[tuple[str, str]]) -> None:
    """The same rule import-linter holds, for those who run the tests alone."""
    allowed = {
        # ``python -m magneton`` is the command line.
        "__main__": {"cli"},
        "schemas": {"schemas"},
        "collectors": {"collectors", "schemas"},
        "transforms": {"transforms", "schemas"},
        "analysis": {"analysis", "schemas"},
        "cli": {"cli", "flows", *STAGES},
        "flows": {"flows", *STAGES} - {"cli"},
    }
    found = {(a.split(".")[1], b.split(".")[1]) for a, b in imports if a.count(".")}
    assert {(a, b) for a, b in found if b not in allowed[a]} == set()


def test_no_file_names_the_machine_it_was_written_on(root: Path) -> None:
    """Paths of one machine help nobody elsewhere. Fault cases are inputs and may say anything."""
    machine = re.compile(rb"(?<![\w.~-])/(root|work)/")
    for path in tracked(root):
        if "faults" in path.parts or path.suffix in {".parquet", ".gz", ".zst", ".png"}:
            continue
        assert not machine.search(path.read_bytes()), path.relative_to(root)


def test_core_dependencies_hold_no_framework(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>=!~ ]", d)[0] for d in project["dependencies"]}
    assert names == {"duckdb", "msgspec", "numpy", "pyarrow", "rich", "typer", "zstandard"}


@pytest.mark.slow
def test_the_wheel_holds_magneton_and_nothing_else(root: Path, tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(root)],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"magneton"}
    assert "magneton/__init__.py" not in names
    assert not [n for n in names if "__pycache__" in n]
    assert {"/".join(n.split("/")[1:]) for n in names if n.endswith("py.typed")} == {
        f"{package.split('/')[-1]}/py.typed" for package in PACKAGES
    }
    assert [n for n in names if n.endswith("licenses/LICENSE")]
    site = tmp_path / "site"
    installed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            str(site),
            str(wheel),
        ],
        capture_output=True,
        text=True,
    )
    assert installed.returncode == 0, installed.stderr
    python = [sys.executable, "-m"]
    for command in ([str(site / "bin" / "magneton")], [*python, "magneton"], [*python, "magneton.cli"]):
        shown = subprocess.run(
            [*command, "--version"], cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True
        )
        assert shown.returncode == 0 and shown.stdout.startswith("magneton "), f"{command}: {shown.stderr}"
