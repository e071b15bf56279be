"""What a killed process leaves beside an output is put back or removed by the next one, and never anything else."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.schemas.test_schemas import hidden, publish

from magneton.schemas import errors
from magneton.schemas.files import leftovers
from magneton.schemas.files import publish as files
from magneton.schemas.files.exchange import exchange


def killed_while_building(target: Path) -> Path:
    """Let a process die while it fills a staging directory; return that directory."""
    code = (
        "import os, signal, sys; from pathlib import Path; from magneton.schemas.files.publish import publish_directory\n"
        "with publish_directory(Path(sys.argv[1]), last='manifest.json', overwrite=True) as staging:\n"
        "    (staging / 'a').write_text('x'); print(staging, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, target], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Path(done.stdout.strip())


def test_the_next_publication_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    staging = killed_while_building(tmp_path / "run")
    other = killed_while_building(tmp_path / "other")
    with files.publish_directory(tmp_path / "run", last="manifest.json") as mine:
        # What somebody still works on stays, and so does what belongs to another output.
        publish(tmp_path / "run", "theirs")
        assert mine.is_dir() and not staging.exists() and other.is_dir()
        (mine / "manifest.json").write_text("{}")
        shutil.rmtree(tmp_path / "run")
    assert hidden(tmp_path) == [other.name]


def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with (
        pytest.raises(errors.OutputExistsError, match="--force"),
        files.publish_directory(target, last="manifest.json") as staging,
    ):
        (staging / "manifest.json").write_text("{}")
        publish(target, "theirs")
    assert (target / "tables" / "a").read_text() == "theirs"
    assert hidden(tmp_path) == []


def test_an_output_that_was_moved_aside_is_put_back(tmp_path: Path) -> None:
    target = tmp_path / "run"
    publish(target, "old")
    target.rename(leftovers.old_directory(target))
    with pytest.raises(errors.OutputExistsError, match="--force"):
        publish(target, "new")
    assert (target / "tables" / "a").read_text() == "old"
    assert hidden(tmp_path) == []


def test_an_output_that_was_moved_aside_and_replaced_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "run"
    publish(target, "old")
    target.rename(leftovers.old_directory(target))
    target.mkdir()
    (target / "thesis.tex").write_text("precious")
    with pytest.raises(errors.OutputExistsError, match="not ours"):
        publish(target, "new", overwrite=True)
    assert len(hidden(tmp_path)) == 1, "the only copy of the old output stays"
    (target / "thesis.tex").unlink()
    publish(target, "new", overwrite=True)
    assert (target / "tables" / "a").read_text() == "new"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("possible", [True, False])
def test_a_directory_is_replaced_with_and_without_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, possible: bool
) -> None:
    if not possible:
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
    publish(tmp_path / "run", "old")
    publish(tmp_path / "run", "new", overwrite=True)
    assert (tmp_path / "run" / "tables" / "a").read_text() == "new"
    assert hidden(tmp_path) == []


def test_an_exchange_of_what_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").is_dir()
