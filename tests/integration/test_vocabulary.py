"""One vocabulary: the words that files and stages share are spelled in ``schemas/kinds.py`` and nowhere else."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from magneton.schemas import codes, kinds

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("collectors", "transforms", "analysis", "cli", "schemas")
ENUMS = [e for _, e in inspect.getmembers(kinds, inspect.isclass) if issubclass(e, StrEnum) and e is not StrEnum]
# ``other`` is a class of kernels as well.
WORDS = {str(member) for enum in ENUMS for member in enum} - {"other"}
# Columns, fields and arguments whose values are such words.
FIELDS: dict[str, set[str]] = {
    "basis": {*kinds.EnergyBasis},
    "category": {*kinds.Activity},
    "clock": {*kinds.Clock},
    "device_kind": {*kinds.DeviceKind},
    "field": {*kinds.PowerField},
    "kind": {*kinds.CaptureKind, *kinds.StepKind, *kinds.RegionKind, *kinds.SensorKind},
    "label": {*kinds.EnergyLabel},
    "per": {*kinds.Unit},
    "role": {*kinds.FileRole},
    "source_format": {*kinds.OwnFormat},
    "verdict": {*kinds.Verdict},
}


def word(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def named(node: ast.expr) -> str | None:
    """Return the field that an expression reads: of ``row["kind"]``, ``row.get("kind")`` and ``row.kind`` it is ``kind``."""
    if isinstance(node, ast.Subscript):
        return word(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return word(node.args[0])
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def values(node: ast.expr | None) -> list[str]:
    """Return the texts that an expression may give: one, several in a list, or either of ``x if a else y``."""
    if isinstance(node, ast.IfExp):
        return values(node.body) + values(node.orelse)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [v for e in node.elts for v in values(e)]
    return [] if (found := word(node)) is None else [found]


def pairs(node: ast.AST) -> Iterator[tuple[str | None, ast.expr | None]]:
    """Yield fields with what is given to them or compared with them."""
    if isinstance(node, ast.Dict):
        yield from ((word(key), value) for key, value in zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords)
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        yield from ((named(a), b) for a in sides for b in sides if a is not b)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        yield from ((named(target), node.value) for target in node.targets)


def repeated(source: str) -> list[str]:
    """Return the places where a program spells a word of the vocabulary: a constant, a set of them, or a value of a field."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and word(node.value) in WORDS:
            found += [t.id for t in node.targets if isinstance(t, ast.Name) and t.id.isupper()]
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 1:
            texts = {t for e in node.elts if (t := word(e)) is not None}
            if len(texts) == len(node.elts) and any(texts <= {*enum} for enum in ENUMS):
                found.append(f"line {node.lineno}: {sorted(texts)}")
        for field, value in pairs(node):
            found += [f"line {node.lineno}: {field} {v}" for v in values(value) if v in FIELDS.get(field or "", ())]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_spells_a_word_of_the_vocabulary_again(stage: str) -> None:
    found = {}
    for path in sorted((ROOT / stage).rglob("*.py")):
        # Steps from older versions keep the words of their time.
        if path.name != "kinds.py" and not path.name.startswith("update_") and (places := repeated(path.read_text())):
            found[str(path.relative_to(ROOT))] = places
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        'PROFILE = "profile"',
        'LABELS = ("measured", "replayed")',
        'x = row["kind"] == "values"',
        'x = file.role != "derived"',
        'Provenance(label="apportioned")',
        'x = {"category": "kernel" if a else "gpu_memcpy"}',
        'class A:\n    basis: str = "gross"',
    ],
)
def test_it_is_found(source: str) -> None:
    assert repeated(source)


@pytest.mark.parametrize(
    "source", ['x = "profile"', 'NAME = "nvidia-smi"', 'x = node.kind == "op"', 'C = ("name", "ts_ns")']
)
def test_other_words_are_free(source: str) -> None:
    assert not repeated(source)


def test_every_flag_has_a_meaning() -> None:
    assert {*kinds.Flag} <= {*codes.WARNING_CODES, *codes.QUARANTINE_REASONS, *codes.POWER_FLAGS}
