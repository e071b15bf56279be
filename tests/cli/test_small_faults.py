"""Small faults that once met users: where output goes, what -v says, which remedies exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / stage) for stage in STAGES)}


def magneton(*words: str, cwd: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, from a shell that ran ``before``."""
    line = f'{before} exec "{sys.executable}" -m magneton.cli "$@"'
    return subprocess.run(
        ["bash", "-c", line, "bash", *words], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=30
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    assert main(["normalize", str(ROOT / "tests" / "found" / "hash-in-kernel-names" / "a.json"), "-o", str(run)]) == 0
    return run


@pytest.mark.parametrize("limit", [1, 8, 40])
@pytest.mark.parametrize("words", [["diff", "run", "run", "-o", "d"], ["normalize", "run", "-o", "again"]])
def test_a_file_that_cannot_grow_is_named_in_one_line(
    words: list[str], limit: int, recording: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands for a full disk: the write fails in the middle."""
    before = sorted(p.name for p in tmp_path.iterdir())
    done = magneton(*words, cwd=tmp_path, before=f"trap '' XFSZ; ulimit -f {limit};")
    assert done.returncode in (0, 2), done.stderr
    if done.returncode:
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("magneton: error: ") and "cannot be written: File too large" in line
        assert ".magneton-" not in line
        assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("words", [["diff", "run", "run", "-o", "shut/d"], ["normalize", "run", "-o", "shut/again"]])
def test_a_place_without_permission_is_named(words: list[str], recording: Path, tmp_path: Path) -> None:
    (tmp_path / "shut").write_text("a file, not a directory")
    done = magneton(*words, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "shut" in line and ".magneton-" not in line


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[" * 100_000, id="open lists"),
        pytest.param("[" * 5_000 + "]" * 5_000, id="deep lists"),
        pytest.param('{"clock_anchors":' * 2_000 + "1" + "}" * 2_000, id="deep objects"),
        pytest.param('{"clock_anchors": [{"realtime_ns": 1e400}]}', id="a float that is none"),
        pytest.param(
            '{"clock_anchors": [{"realtime_ns": 99999999999999999999999, "boottime_ns": 1}]}', id="a huge integer"
        ),
        pytest.param("null", id="null"),
        pytest.param("", id="nothing"),
    ],
)
def test_anchors_that_are_none_are_refused_in_one_line(content: str, recording: Path, tmp_path: Path) -> None:
    (tmp_path / "anchors.json").write_text(content)
    (tmp_path / "log.csv").write_text(
        "timestamp_ns,clock,device_kind,device_id,field,value,unit\n1,boottime,gpu,a,power,1,W\n"
    )
    done = magneton("normalize", "run", "-o", "x", "--power", "log.csv", "--anchors", "anchors.json", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "words", [["info", "pipe"], ["diff", "pipe", "run"], ["sql", "pipe", "SELECT 1"], ["normalize", "pipe", "-o", "x"]]
)
def test_a_pipe_is_refused_and_not_waited_for(words: list[str], recording: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = magneton(*words, cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("words", [["diff", "run", "run", "-o", "d"], ["normalize", "run", "-o", "again"]])
def test_ctrl_c_ends_with_one_line_and_leaves_nothing(words: list[str], recording: Path, tmp_path: Path) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, os, signal, time\n"
        "def press():\n"
        "    while not any(n.startswith('.magneton-staging') for n in os.listdir('.')): time.sleep(0.001)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=press, daemon=True).start()\n"
    )
    paths = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "magneton.cli", *words],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=30,
    )
    (tmp_path / "sitecustomize.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    if done.returncode:
        assert (done.returncode, done.stderr.strip()) == (130, "magneton: interrupted")
        assert sorted(p.name for p in tmp_path.iterdir()) == before
