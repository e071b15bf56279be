"""Versions, ids, errors, the manifest, and publication that is whole or not at all."""

from __future__ import annotations

import inspect
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.small_recording import rows, small_tables

from magneton.schemas import codes, errors, ids, manifest
from magneton.schemas.files import publish as files
from magneton.schemas.files.json import read_object
from magneton.schemas.tables.columns import Table
from magneton.schemas.tables.parquet import TABLES, TableWriter, conform, read_table
from magneton.schemas.versions import registry as versions
from magneton.schemas.views.columns import RUNS
from magneton.schemas.views.registry import VIEWS

ERRORS = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.MagnetonError)]

# --- versions ---


@pytest.mark.parametrize("stated", [b"1", "1", 1])
def test_a_version_is_read_however_it_is_stated(stated: object) -> None:
    assert versions.parse_version(stated, "x.parquet") == 1


@pytest.mark.parametrize(
    "stated",
    [None, b"", b"1; DROP", "1.0", "one", -1, 1.5, True, False, [1], b"\xff", "١", b" 1", "9" * 400, "1\n"],
)
def test_what_is_no_version_is_refused_on_one_line(stated: object) -> None:
    with pytest.raises(errors.SchemaVersionError) as caught:
        versions.parse_version(stated, "dir/x.parquet")
    line = str(caught.value)
    assert line.startswith("dir/x.parquet: ")
    assert versions.supported() in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("stated", [b"999", 999, "3"])
def test_a_newer_version_is_refused_by_name(stated: object) -> None:
    with pytest.raises(errors.SchemaVersionError, match="install a newer magneton") as caught:
        versions.parse_version(stated, "x.parquet")
    number = stated.decode() if isinstance(stated, bytes) else str(stated)
    assert f"version {number};" in str(caught.value)


def test_an_unreadably_old_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "SCHEMA_VERSION", 5)
    monkeypatch.setattr(versions, "OLDEST_READABLE", 3)
    with pytest.raises(errors.SchemaVersionError, match="version 2; this release reads 3 to 5"):
        versions.parse_version(2, "x.parquet")


@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_steps_chain_in_order_from_any_older_version(start: int) -> None:
    def step(number: int) -> versions.DocumentStep:
        return lambda document: {**document, "done": [*document["done"], number]}

    registry = {number: step(number) for number in (2, 3, 4)}
    document = versions.upgrade_document({"schema_version": start, "done": []}, registry, "x.json", newest=4)
    assert document == {"schema_version": 4, "done": list(range(start + 1, 5))}


def test_table_steps_chain_in_order(tmp_path: Path) -> None:
    path = tmp_path / "kernels.parquet"
    with TableWriter(path, TABLES["kernels"]) as writer:
        writer.write(rows("kernels", small_tables()["kernels"]))
    seen: list[tuple[int, Path]] = []

    def step(number: int) -> versions.TableStep:
        def apply(table: pa.Table, where: Path) -> pa.Table:
            seen.append((number, where))
            return table

        return apply

    steps = {3: {"kernels": step(3), "ops": step(0)}, 4: {"ops": step(0)}, 5: {"kernels": step(5)}}
    assert read_table(path, "kernels", steps=steps, newest=5).num_rows == 5
    assert seen == [(3, path), (5, path)]


def test_every_version_up_to_this_one_can_be_reached() -> None:
    for steps in (versions.TABLE_STEPS, versions.MANIFEST_STEPS, versions.DIFF_STEPS):
        assert set(steps) == set(range(versions.OLDEST_READABLE + 1, versions.SCHEMA_VERSION + 1))


# --- tables ---


@pytest.mark.parametrize("table", [*TABLES.values(), RUNS, *(v.table for v in VIEWS.values())], ids=lambda t: t.name)
def test_every_column_says_what_it_means_and_in_which_unit(table: Table) -> None:
    assert table.doc.endswith((".", "`."))
    names = table.column_names()
    assert len(set(names)) == len(names)
    units = {"_ns": "ns", "_j": "J", "_w": "W", "_bytes": "bytes", "_percent": "%"}
    for column in table.columns:
        assert column.doc, f"{table.name}.{column.name} has no meaning"
        assert column.name == column.name.lower()
        for suffix, unit in units.items():
            plain = column.name.removesuffix("_a").removesuffix("_b")
            if plain.endswith(suffix) and column.type != pa.string():
                assert column.unit == unit, f"{table.name}.{column.name}"
        if column.unit is not None:
            assert column.field().metadata[b"magneton.unit"] == column.unit.encode()


def test_a_table_is_completed_and_ordered() -> None:
    table = TABLES["captures"]
    short = pa.table({"dur_ns": [1], "ts_ns": [0], "name": ["c"], "run_id": ["r"]})
    full = conform(table, short)
    assert full.schema.names == table.column_names()
    assert full.column("kind").null_count == 1
    with pytest.raises(KeyError, match="unknown columns"):
        conform(table, short.append_column("nonsense", pa.array([1])))
    with pytest.raises(KeyError, match="missing columns"):
        conform(table, short.drop_columns(["ts_ns"]))


def test_codes_are_documented_and_plain() -> None:
    for code, meaning in {**codes.WARNING_CODES, **codes.QUARANTINE_REASONS}.items():
        assert code == code.lower()
        assert code.replace("_", "").isalnum()
        assert meaning


# --- ids ---

HASHES = st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), max_size=5)


@given(HASHES, st.randoms())
def test_a_run_is_its_content_in_any_order(hashes: list[str], random: Any) -> None:
    shuffled = hashes[:]
    random.shuffle(shuffled)
    assert ids.run_id(shuffled) == ids.run_id(hashes)
    assert ids.run_id(hashes)[0] == "r"
    assert len(ids.run_id(hashes)) == 17
    assert ids.run_id([*hashes, "f" * 64]) != ids.run_id(hashes)


def test_a_file_is_hashed_as_sha256_does(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc" * 500_000)
    assert ids.sha256_file(path) == "206c8387a6fd09a951f4945cb98bd65ae2b9a59d4069f70e00a9d9acd7c86515"
    path.write_bytes(b"")
    assert ids.sha256_file(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_diff_knows_its_sides_and_settings() -> None:
    made = {ids.diff_id("ra", "rb", "{}"), ids.diff_id("rb", "ra", "{}"), ids.diff_id("ra", "rb", "{1}")}
    assert len(made) == 3
    assert all(d[0] == "d" and len(d) == 17 for d in made)


# --- errors ---


@pytest.mark.parametrize("kind", ERRORS, ids=lambda c: c.__name__)
def test_every_error_is_one_line_with_file_reason_remedy(kind: type[errors.MagnetonError]) -> None:
    error = kind("is\nwrong\x1b[31m", path="a\rb.json", remedy="mend\tit")
    assert str(error) == "a\\rb.json: is\\nwrong\\x1b[31m (mend\\tit)"
    assert str(kind("is wrong")) == "is wrong"
    assert error.exit_code == errors.EXIT_BAD_INPUT
    assert error.code == kind.__name__
    assert (inspect.getdoc(kind) or "").endswith((".", "anything."))


@given(st.text())
def test_what_is_printable_is_one_line_and_drives_no_terminal(text: str) -> None:
    shown = errors.printable(text)
    assert shown.isprintable() or shown == ""
    shown.encode()


# --- manifest ---


def test_the_manifest_always_states_its_version(tmp_path: Path) -> None:
    written = manifest.Manifest(run_id="r0", label="x")
    manifest.write_manifest(tmp_path, written)
    document = read_object(tmp_path / "manifest.json")
    assert document["schema_version"] == versions.SCHEMA_VERSION
    assert manifest.read_manifest(tmp_path) == written


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", errors.InputFormatError),
        (b"[]", errors.InputFormatError),
        (b"{", errors.InputFormatError),
        (b"\xff\xfe", errors.InputFormatError),
        (b"{}", errors.SchemaVersionError),
        (b'{"schema_version": 999, "run_id": "r", "label": "x"}', errors.SchemaVersionError),
        (b'{"schema_version": "1; DROP", "run_id": "r", "label": "x"}', errors.SchemaVersionError),
        (b'{"schema_version": 1, "label": "x"}', errors.SchemaVersionError),
        (b'{"schema_version": 1, "run_id": 5, "label": "x"}', errors.SchemaVersionError),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, raw: bytes, error: type[errors.MagnetonError]) -> None:
    (tmp_path / "manifest.json").write_bytes(raw)
    with pytest.raises(error) as caught:
        manifest.read_manifest(tmp_path)
    assert "manifest.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InputNotFoundError, match=r"manifest\.json"):
        manifest.read_manifest(tmp_path)


def test_unknown_fields_of_a_manifest_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema_version": 1, "run_id": "r", "label": "x", "later": {"a": 1}}')
    assert manifest.read_manifest(tmp_path).label == "x"


def test_every_part_of_the_manifest_is_described() -> None:
    for struct in vars(manifest).values():
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
            assert inspect.getdoc(struct), struct.__name__


# --- publication ---


class BrokenError(Exception):
    """Raised in the middle."""


def hidden(directory: Path) -> list[str]:
    return [p.name for p in directory.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("data", [b"bytes", "text ü"])
def test_a_file_appears_whole(tmp_path: Path, data: bytes | str) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    files.atomic_write(path, data)
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert hidden(tmp_path) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(errors.OutputFailedError, match="No space"):
        files.atomic_write(path, b"new")
    assert path.read_text() == "old"
    assert hidden(tmp_path) == []


def test_a_large_file_is_published_when_done(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with files.publish_file(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    with pytest.raises(errors.OutputExistsError, match="--force"), files.publish_file(path):
        pass
    with pytest.raises(BrokenError), files.publish_file(path, overwrite=True) as temporary:
        temporary.write_text("half")
        raise BrokenError
    assert path.read_text() == "new"
    with pytest.raises(errors.OutputExistsError, match="not a file"), files.publish_file(tmp_path, overwrite=True):
        pass
    with pytest.raises(errors.OutputFailedError), files.publish_file(tmp_path / "no" / "f"):
        pass
    assert hidden(tmp_path) == []


def publish(target: Path, text: str, **options: bool) -> None:
    with files.publish_directory(target, last="manifest.json", **options) as staging:
        (staging / "tables").mkdir()
        (staging / "tables" / "a").write_text(text)
        (staging / "manifest.json").write_text("{}")


def test_a_directory_appears_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    with files.publish_directory(target, last="manifest.json") as staging:
        assert staging.parent == target.parent
        assert not target.exists()
        (staging / "manifest.json").write_text("{}")
    assert [p.name for p in target.iterdir()] == ["manifest.json"]
    assert hidden(target.parent) == []


def test_an_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    publish(tmp_path / "run", "new")
    assert (tmp_path / "run" / "tables" / "a").read_text() == "new"
    assert hidden(tmp_path) == []


def test_a_recording_is_replaced_only_when_asked(tmp_path: Path) -> None:
    target = tmp_path / "run"
    publish(target, "old")
    with pytest.raises(errors.OutputExistsError, match="--force"):
        publish(target, "new")
    assert (target / "tables" / "a").read_text() == "old"
    publish(target, "new", overwrite=True)
    assert (target / "tables" / "a").read_text() == "new"
    assert hidden(tmp_path) == []


def test_what_is_not_ours_is_never_deleted(tmp_path: Path) -> None:
    target = tmp_path / "home"
    target.mkdir()
    (target / "thesis.tex").write_text("precious")
    with pytest.raises(errors.OutputExistsError, match="not ours"):
        publish(target, "new", overwrite=True)
    assert (target / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("make", [lambda p: p.write_text("x"), lambda p: p.symlink_to("elsewhere")])
def test_a_file_or_link_in_the_way_stays(tmp_path: Path, make: Callable[[Path], object]) -> None:
    target = tmp_path / "run"
    make(target)
    with pytest.raises(errors.OutputExistsError, match="not a directory"):
        publish(target, "new", overwrite=True)
    assert target.is_symlink() or target.read_text() == "x"


@pytest.mark.parametrize("failure", [BrokenError, KeyboardInterrupt, SystemExit])
def test_a_failure_in_the_middle_keeps_the_old_output(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "run"
    publish(target, "old")
    with pytest.raises(failure), files.publish_directory(target, last="manifest.json", overwrite=True) as staging:
        (staging / "manifest.json").write_text("{}")
        raise failure
    assert (target / "tables" / "a").read_text() == "old"
    assert hidden(tmp_path) == []


def test_a_directory_without_its_manifest_is_not_published(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with pytest.raises(RuntimeError, match="was not written"), files.publish_directory(target, last="manifest.json"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rename_puts_the_old_output_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "run"
    publish(target, "old")
    rename = Path.rename
    monkeypatch.setattr(files, "exchange", lambda one, other: False)

    def fail(self: Path, to: Path) -> Path:
        if "staging" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        publish(target, "new", overwrite=True)
    assert (target / "tables" / "a").read_text() == "old"
    assert hidden(tmp_path) == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.OutputFailedError, match="cannot be written"):
        publish(tmp_path / "file" / "run", "new")


def test_published_directories_are_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    publish(tmp_path / "run", "new")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
