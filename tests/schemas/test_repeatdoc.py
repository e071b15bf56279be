"""Documents of repeats and replays: read as they were written, by version, and told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magneton.schemas.documents.repeat import (
    EnergyEstimate,
    RefusalDoc,
    RepeatDocument,
    RepeatedRegion,
    TimeEstimate,
    WindowDoc,
    read_repeats,
    read_replays,
)
from magneton.schemas.errors import SchemaVersionError
from magneton.schemas.manifest import encode_json
from magneton.schemas.versions.registry import SCHEMA_VERSION


def document() -> RepeatDocument:
    time = TimeEstimate(0.02, 0.019, 0.021, 0.01, 0.0095, 0.0105, True)
    energy = EnergyEstimate("gpu", "GPU-1", "power", None, False, [], {}, RefusalDoc("NotComparableError", "clocks"))
    region = RepeatedRegion(
        "aten::mm", "torch", "operator", 10, "given", 2, {"aten::mm": 2}, {}, True, [WindowDoc(0, 9, 3, 10)], time, [energy]
    )  # fmt: skip
    return RepeatDocument("in_place", 30, "calls", 0.5, 3, False, [region], [], {"torch": "2"}, ["a note"])


def test_it_reads_back_and_states_format_and_version(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.write_bytes(encode_json(document()))
    stored = json.loads(file.read_text())
    assert (stored["format"], stored["schema_version"]) == ("magneton-repeats", SCHEMA_VERSION)
    assert stored["regions"][0]["time"]["value_s_per_call"] == 0.01
    assert read_repeats(file) == document()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": None}, "states no schema version"),
        ({"schema_version": SCHEMA_VERSION + 1}, f"has schema version {SCHEMA_VERSION + 1}"),
        ({"format": "magneton-replays"}, "is not a document of the format magneton-repeats"),
        ({"regions": 5}, "is not a document of the format magneton-repeats"),
    ],
)
def test_what_is_no_such_document_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "found.json"
    file.write_text(json.dumps(json.loads(encode_json(document())) | change))
    with pytest.raises(SchemaVersionError, match=says):
        read_repeats(file)
    with pytest.raises(SchemaVersionError):
        read_replays(file)
