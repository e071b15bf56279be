"""Small faults that once met users: where output goes, what -v says, which remedies exist."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from magneton.cli import start
from magneton.cli.app import main
from magneton.cli.docs import commands
from magneton.schemas.errors import LimitExceededError, OutputFailedError
from magneton.transforms.staging.engine import room

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("cli", "collectors", "transforms", "analysis", "schemas")


def pairs(tmp_path: Path) -> list[tuple[str, str]]:
    """Two pairs of inputs with equal names in other folders."""
    made = []
    for number, source in enumerate(("hash-in-kernel-names", "swapped-with-shapes")):
        sides = []
        for side, name in (("x", "a.json"), ("y", "b.json")):
            place = tmp_path / f"{number}{side}" / "rank0"
            place.mkdir(parents=True)
            shutil.copy(ROOT / "tests" / "found" / source / name, place)
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


# Modules that one command alone reaches; a remedy there need not say which command has the option.
ONE_COMMAND = {
    "cli/magneton/flows/repeat.py": "repeat",
    "cli/magneton/flows/traces.py": "normalize",
    "cli/magneton/cli/commands/sql.py": "sql",
    "collectors/magneton/collectors/attach/launch.py": "record",
    "collectors/magneton/collectors/attach/repeat_launch.py": "repeat",
    "transforms/magneton/transforms/power/log.py": "normalize",  # only where --clock was given
    "transforms/magneton/transforms/power/neutral_csv.py": "normalize",  # likewise
    "analysis/magneton/analysis/diff/checks.py": "diff",
    "analysis/magneton/analysis/energy/repeats": "repeat",
}
WRITERS = ("record", "normalize", "sql", "repeat")


def remedies(path: Path) -> Iterator[str]:
    """Yield the remedies in a module; what is filled in later is left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            texts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            yield "".join(texts)


def test_remedies_name_commands_and_options_that_exist() -> None:
    """Each option in a remedy stands after its command, or in a module that only commands with this option reach."""
    known = {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)} for name, command in commands().items()
    }
    checked = 0
    for path in (p for stage in STAGES for p in (ROOT / stage).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        of = [name for start, name in ONE_COMMAND.items() if place.startswith(start)]
        if place.endswith("files/publish.py"):
            of = list(WRITERS)
        for remedy in remedies(path):
            # Of other programs: `nsys export --type sqlite`.
            ours = re.sub(r"`(?!magneton)[^`]*`", "", remedy)
            for part in re.split(r"(?=magneton [a-z]+\b)", ours):
                called = re.match(r"magneton ([a-z]+)", part)
                asked = [called[1]] if called else of
                assert not called or called[1] in known, f"{place}: {remedy}"
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", part):
                    assert asked and all(option in known[name] for name in asked), f"{place}: {remedy}"
                    checked += 1
    assert checked >= 20


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / stage) for stage in STAGES)}


def magneton(*words: str, cwd: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, from a shell that ran ``before``."""
    line = f'{before} exec "{sys.executable}" -m magneton.cli "$@"'
    return subprocess.run(
        ["bash", "-c", line, "bash", *words], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=30
    )


@contextlib.contextmanager
def limited(file_kib: int | None) -> Iterator[None]:
    """Let no file grow beyond a size, as ``ulimit -f`` does, and nothing wait for longer than a moment."""

    def waited(number: int, frame: object) -> None:
        raise TimeoutError("waited for 30 s")

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    others = signal.signal(signal.SIGALRM, waited)
    signal.alarm(30)
    if file_kib is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_kib * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, others)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """``command(*words, file_kib=None, apart=False)`` runs the command line in ``tmp_path``.

    It starts in this process, which saves most of a second, or ``apart``, in one of its own. In both, what Python says of
    objects that fail when they are forgotten is part of stderr.
    """

    def run(*words: str, file_kib: int | None = None, apart: bool = False) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        if apart:
            before = "" if file_kib is None else f"trap '' XFSZ; ulimit -f {file_kib};"
            return magneton(*words, cwd=tmp_path, before=before)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "unraisablehook", lambda found: sys.stderr.write(f"ignored: {found.exc_value!r}\n"))
        capfd.readouterr()
        with limited(file_kib):
            code = main(list(words))
            gc.collect()
        said = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return run


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    assert main(["normalize", str(ROOT / "tests" / "found" / "hash-in-kernel-names" / "a.json"), "-o", str(run)]) == 0
    return run


@pytest.mark.parametrize("limit", [1, 8, 40])
@pytest.mark.parametrize("words", [["diff", "run", "run", "-o", "d"], ["normalize", "run", "-o", "again"]])
def test_a_file_that_cannot_grow_is_named_in_one_line(
    words: list[str], limit: int, recording: Path, tmp_path: Path, command: Command
) -> None:
    """A limit on the size of files stands for a full disk: the write fails in the middle."""
    before = sorted(p.name for p in tmp_path.iterdir())
    done = command(*words, file_kib=limit, apart=limit == 8)
    assert done.returncode in (0, 2), done.stderr
    if done.returncode:
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("magneton: error: ") and "cannot be written: File too large" in line
        assert ".magneton-" not in line
        assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("words", [["diff", "run", "run", "-o", "shut/d"], ["normalize", "run", "-o", "shut/again"]])
def test_a_place_without_permission_is_named(
    words: list[str], recording: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "shut").write_text("a file, not a directory")
    done = command(*words)
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
def test_anchors_that_are_none_are_refused_in_one_line(
    content: str, recording: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "anchors.json").write_text(content)
    (tmp_path / "log.csv").write_text(
        "timestamp_ns,clock,device_kind,device_id,field,value,unit\n1,boottime,gpu,a,power,1,W\n"
    )
    # Deep nesting meets another depth of calls in a process of its own.
    apart = content.startswith("[")
    words = ["normalize", "run", "-o", "x", "--power", "log.csv", "--anchors", "anchors.json"]
    done = command(*words, apart=apart)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "words", [["info", "pipe"], ["diff", "pipe", "run"], ["sql", "pipe", "SELECT 1"], ["normalize", "pipe", "-o", "x"]]
)
def test_a_pipe_is_refused_and_not_waited_for(
    words: list[str], recording: Path, tmp_path: Path, command: Command
) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = command(*words)
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


def test_a_diff_that_cannot_be_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of another pair, or of a newer release."""
    first, _ = pairs(tmp_path)
    monkeypatch.chdir(tmp_path)
    earlier = tmp_path / "out" / "rank0-vs-rank0" / "diff.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text('{"schema_version": 99}')
    assert main(["diff", *first]) == 0
    assert earlier.read_text() == '{"schema_version": 99}'
    assert (tmp_path / "out" / "rank0-vs-rank0-2" / "diff.json").is_file()


def test_info_shows_a_diff(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d"
    assert main(["diff", str(recording), str(recording), "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert main(["info", str(out)]) == 0
    assert capsys.readouterr().out == shown
    assert main(["info", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "diff.json").read_text())


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 2}', "{}", '{"a":' * 5000 + "1" + "}" * 5000])
def test_a_damaged_diff_is_refused_in_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "diff.json").write_text(text)
    for words in (["info", str(tmp_path)], ["sql", str(tmp_path), "SELECT 1"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "diff.json" in err


FULL = "Out of Memory Error: failed to offload data block of size 256.0 KiB. This limit was set by the 'max_temp_directory_size'"


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (duckdb.OutOfMemoryException(FULL), OutputFailedError),
        (duckdb.IOException("IO Error: Could not write file: No space left on device"), OutputFailedError),
        # Arrow hands on what the engine says while rows are read from it.
        (pa.ArrowInvalid(FULL), OutputFailedError),
        (duckdb.OutOfMemoryException("Out of Memory Error: could not allocate block"), LimitExceededError),
        (duckdb.BinderException("Binder Error: a bug of ours"), duckdb.BinderException),
        (OSError(2, "No such file or directory"), FileNotFoundError),
    ],
)
def test_an_engine_without_room_is_no_bug(error: Exception, becomes: type[Exception]) -> None:
    with pytest.raises(becomes), room(Path("run")):
        raise error


@pytest.mark.parametrize("limit", [40, 100, 200])
@pytest.mark.parametrize("words", [["sql", "run", "SELECT 1"], ["normalize", "run", "-o", "x"], ["diff", "run", "run"]])
def test_a_disk_that_fills_up_is_told_in_one_line(
    words: list[str], limit: int, tmp_path: Path, command: Command
) -> None:
    """Neither tables beside the recording, nor in the cache, nor in an output: no trace of Arrow, no temporary name."""
    shutil.copytree(ROOT / "examples" / "recordings" / "llama-hf", tmp_path / "run")
    before = sorted(p.name for p in (tmp_path / "run").iterdir())
    done = command(*words, file_kib=limit, apart=limit == 100)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "cannot be written: File too large" in line
    assert ".magneton-" not in line and ".making-" not in line
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == before
    left = [p for p in tmp_path.rglob("*") if p.name.startswith((".magneton-", ".making-"))]
    assert left == []


def test_rows_that_do_not_fit_leave_no_file(recording: Path, tmp_path: Path, command: Command) -> None:
    words = ["sql", "run", "SELECT random() AS x FROM range(100000)", "--parquet", "x.parquet"]
    done = command(*words, file_kib=40)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("magneton: error: x.parquet: cannot be written: File too large")
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "x.parquet").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["--version"], ["tables"], ["sql", "run", "SELECT 1", "--json"], ["info", "run"]])
def test_a_full_stdout_is_named(words: list[str], recording: Path, tmp_path: Path) -> None:
    done = magneton(*words, cwd=tmp_path, before="exec > /dev/full;")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "magneton: error: stdout: cannot be written: No space left on device"
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_bug(closed: str, recording: Path, tmp_path: Path) -> None:
    done = magneton("sql", "run", "-", cwd=tmp_path, before=f"exec {closed} ;")
    # Nothing can be read, so there is no query.
    assert done.returncode == 2 and "internal error" not in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_during_the_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pressed:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "magneton.cli.app", Pressed())
    assert start.main() == 130
    assert capsys.readouterr().err == "magneton: interrupted\n"
