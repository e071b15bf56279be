"""Paths of inputs in a recording: unique, below ``raw``, and never taken from a hostile name as it is."""

from __future__ import annotations

import pytest

from magneton.schemas.raw_paths import RawPaths, capture_folder


def test_the_second_file_of_a_name_gets_a_folder() -> None:
    paths = RawPaths()
    folder = capture_folder("profile", 0)
    assert [paths.place(folder, name) for name in ("rank0.json", "rank0.json", "RANK0.json", "et.json")] == [
        "raw/profile/rank0/rank0.json",
        "raw/profile/rank0/2/rank0.json",
        "raw/profile/rank0/3/RANK0.json",
        "raw/profile/rank0/et.json",
    ]


def test_a_file_and_a_folder_never_share_a_path() -> None:
    paths = RawPaths()
    assert paths.place("raw/extra", "2") == "raw/extra/2"
    assert paths.place("raw/extra", "a") == "raw/extra/a"
    assert paths.place("raw/extra", "a") == "raw/extra/3/a", "raw/extra/2 is a file"
    assert paths.place("raw", "extra") == "raw/2/extra", "raw/extra is a folder"


@pytest.mark.parametrize(
    "path", ["manifest.json", "tables/ops.parquet", "raw", "raw/../x", "/raw/x", "raw//x", "./raw/x", "raw/a/", "raw/a"]
)
def test_a_stated_path_is_kept_only_where_it_is_harmless_and_free(path: str) -> None:
    assert not RawPaths(["raw/a"]).keep(path)


def test_a_stated_path_is_kept() -> None:
    paths = RawPaths()
    assert paths.keep("raw/extra/1/power.csv")
    assert not paths.keep("raw/extra/1/power.csv")
    assert paths.place("raw/extra/1", "power.csv") == "raw/extra/1/2/power.csv"


@pytest.mark.parametrize(
    ("capture", "folder"), [("../..", "_"), ("..", "_"), ("", "_"), ("a b/c", "a_b_c"), ("power-2", "power-2")]
)
def test_the_name_of_a_capture_is_one_folder(capture: str, folder: str) -> None:
    assert capture_folder(capture, 3) == f"raw/{folder}/rank3"
