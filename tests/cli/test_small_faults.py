"""Small faults that once met users: where output goes, what -v says, which remedies exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from magneton.cli.app import main
from magneton.cli.docs import commands

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("cli", "collectors", "transforms", "analysis", "schemas")


def pairs(tmp_path: Path) -> list[tuple[str, str]]:
    """Two pairs of inputs with equal names in other folders."""
    made = []
    for number, (a, b) in enumerate((("gpt2-hf", "gpt2-fused"), ("llama-hf", "llama-fused"))):
        sides = []
        for side, source in (("x", a), ("y", b)):
            place = tmp_path / f"{number}{side}" / "rank0"
            shutil.copytree(ROOT / "examples" / "recordings" / source, place)
            sides.append(str(place))
        made.append((sides[0], sides[1]))
    return made


def test_pairs_of_equal_names_do_not_replace_each_others_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A diff of the same pair replaces the earlier one; that of another pair of these names gets a number."""
    first, second = pairs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for pair in (first, second, first, second):
        assert main(["diff", *pair]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["rank0-vs-rank0", "rank0-vs-rank0-2"]
    assert "written: out/rank0-vs-rank0-2" in capsys.readouterr().err


def test_verbose_says_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ROOT / "tests" / "found" / "hash-in-kernel-names" / "a.json"
    assert main(["normalize", str(trace), "-o", str(tmp_path / "run"), "-v"]) == 0
    said = capsys.readouterr().err
    assert "read as kineto" in said and "published" in said
    assert main(["diff", str(tmp_path / "run"), str(tmp_path / "run"), "-o", str(tmp_path / "d"), "-vv"]) == 0
    said = capsys.readouterr().err
    assert "aligned by structure" in said and "columns read" in said
    assert main(["diff", str(tmp_path / "run"), str(tmp_path / "run"), "-o", str(tmp_path / "d")]) == 0
    assert "info:" not in capsys.readouterr().err


def test_remedies_name_options_that_exist() -> None:
    """A remedy that says `magneton X --option` names a command, and an option of that command."""
    known = {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)} for name, command in commands().items()
    }
    checked = 0
    for stage in STAGES:
        for path in (ROOT / stage).rglob("*.py"):
            for remedy in re.findall(r'remedy=f?"([^"]*)"', path.read_text()):
                for name, rest in re.findall(r"magneton (\w+)([^`,;]*)", remedy):
                    assert name in known, f"{path.name}: {remedy}"
                    for option in re.findall(r"(?<!\w)--[a-z][a-z-]*", rest):
                        assert option in known[name] or option == "--", f"{path.name}: {remedy}"
                    checked += 1
    assert checked >= 5
