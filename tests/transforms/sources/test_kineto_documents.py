"""Kinds of faults of the document: layout, cuts, compression, limits. A file is read with its books balanced or refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import time
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_traces import KINDS, document, kernel, op, run_of

from magneton.schemas.errors import (
    InputFormatError,
    LimitExceededError,
    TruncatedInputError,
    UnsupportedCompressionError,
)

# --- the document ----------------------------------------------------------------------------------------------------------

TRAPS = [
    op("a", 1, 2, args={"note": 'say "},{" or ]}', "list": [{"x": 1}, {"y": [{}]}]}),
    kernel("k},{", 2, 3),
    op("b", 3, 1),
]


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("space", ["", "\r\n\t  "])
def test_metadata_and_layout_do_not_matter(indent: int | None, space: str) -> None:
    metadata = {
        "nested": {"traceEvents": [1, 2, {"a": "]"}]},
        "text": '"traceEvents": [',
        "distributedInfo": {"rank": 2, "world_size": 4},
    }
    body = json.dumps(TRAPS, indent=indent)
    members = [json.dumps(m)[1:-1] for m in ({k: v} for k, v in metadata.items())]
    for place in range(len(members) + 1):
        parts = [*members[:place], f'"traceEvents"{space}:{space}{body}', *members[place:]]
        run = run_of(f"{space}{{{space}{f'{space},{space}'.join(parts)}{space}}}{space}".encode())
        assert [r["name"] for t in ("ops", "kernels") for r in run.rows(t)] == ["a", "b", "k},{"]
        assert run.rows("captures")[0]["rank"] == 2


def test_small_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from magneton.transforms.reading import codecs as inputs
    from magneton.transforms.reading import json_array as json_events

    events = [{**e, "name": f"{e['name']}{i}", "ts": i} for i in range(200) for e in TRAPS]
    whole = run_of(document(events))
    for size in (1, 7, 100, 1000):
        monkeypatch.setattr(json_events, "PIECE_BYTES", size)
        monkeypatch.setattr(inputs, "BLOCK_BYTES", size)
        pieces = run_of(document(events))
        for table in ("ops", "kernels"):
            mine, others = ([r | {"run_id": ""} for r in run.rows(table)] for run in (whole, pieces))
            assert mine == others


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "null", "3", '"traceEvents"', "{}", '{"traceEvents": null}', '{"traceEvents": {}}', '{"traceEvents": "x"}',
        "[1, 2, 3]", '[{"file": "a.json", "batch_size": 32}]', '[["a"], ["b"]]', "\ufeff", "traceEvents", '{"traceEvents": [] "x": 1}', '{"traceEvents": []} garbage',
        '{"traceEvents": [], "traceEvents": []}', '{"traceEvents": [{"ph": "X" "ts": 1}]}', "{'traceEvents': []}",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(InputFormatError):
        run_of(text.encode())


def test_another_encoding_is_refused_in_words() -> None:
    with pytest.raises(InputFormatError):
        run_of(document(TRAPS).decode().encode("utf-16"))


SMALL = document(
    [op("a", 1, 2), kernel("k1", 5, 1), op("b", 9, 1, args={"External id": 3}), kernel("k2", 12, 1)], rank=1
)


@pytest.mark.parametrize("compress", [None, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_cut_anywhere_is_noticed_and_salvaged(compress: Any) -> None:
    whole = SMALL if compress is None else compress(SMALL)
    step = 17 if compress is None else 11
    for cut in range(len(whole) - 1, 1, -step):
        part = whole[:cut]
        with pytest.raises((TruncatedInputError, InputFormatError)) as caught:
            run_of(part)
        assert caught.type is TruncatedInputError
        try:
            run = run_of(part, allow_truncated=True)
        except InputFormatError:
            assert compress is not None or cut < 20
            continue
        assert run.manifest.incomplete
        assert "truncated" in run.warnings()
        names = [r["name"] for t in ("ops", "kernels") for r in run.rows(t)]
        assert set(names) <= {"a", "k1", "b", "k2"}
        if compress is None:
            closed = sum(part.count(b'"name": "%s"' % n) for n in (b"a", b"b", b"k1", b"k2"))
            assert closed - 1 <= len(names) <= closed


def test_an_open_array_may_end_after_any_event() -> None:
    for tail in (b"", b",", b" ,\n", b"\n"):
        run = run_of(b"[" + b",".join(json.dumps(e).encode() for e in TRAPS) + tail)
        assert run.warnings()["array_not_terminated"] == 1
        assert len(run.rows("ops")) == 2
    with pytest.raises(TruncatedInputError):
        run_of(b"[" + json.dumps(TRAPS[0]).encode() + b',{"ph":')


@given(cuts=st.lists(st.integers(0, len(SMALL)), max_size=6), padding=st.integers(0, 700), frames=st.booleans())
@KINDS
def test_any_division_into_members_or_frames(cuts: list[int], padding: int, frames: bool) -> None:
    bounds = [0, *sorted(cuts), len(SMALL)]
    parts = [SMALL[a:b] for a, b in itertools.pairwise(bounds)]
    compress = zstandard.ZstdCompressor().compress if frames else gzip.compress
    whole = b"".join(compress(p) for p in parts) + (b"" if frames else bytes(padding))
    assert len(run_of(whole).rows("kernels")) == 2


@pytest.mark.parametrize("garbage", [b"\1\2\3", b"garbage" * 100_000, b"\x1f"])
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_garbage_after_the_stream_is_left_out_with_a_word(garbage: bytes, compress: Any) -> None:
    run = run_of(compress(SMALL) + garbage)
    assert run.warnings()["trailing_garbage"] == 1
    assert len(run.rows("kernels")) == 2


def test_other_codecs_are_named() -> None:
    with pytest.raises(UnsupportedCompressionError, match="bzip2"):
        run_of(bz2.compress(SMALL))


def test_a_damaged_stream_is_refused() -> None:
    whole = bytearray(gzip.compress(SMALL * 1))
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(InputFormatError):
        run_of(bytes(whole))


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"traceEvents":[' + b" " * (40 << 20) + b"]}"),
        gzip.compress(b'[{"ph":"M"},' + b"{}," * (14 << 20) + b"{}]"),
        zstandard.ZstdCompressor().compress(b'{"traceEvents":[{"name":"' + b"a" * (40 << 20) + b'"}]}'),
        gzip.compress(b'{"metadata":"' + b"a" * (40 << 20) + b'","traceEvents":[]}'),
    ],
)
def test_bombs_of_any_make_are_refused_early(content: bytes) -> None:
    start = time.monotonic()
    with pytest.raises(LimitExceededError):
        run_of(content)
    assert time.monotonic() - start < 10


def test_the_size_limit_counts_what_comes_out() -> None:
    with pytest.raises(LimitExceededError):
        run_of(document(TRAPS * 100), max_decompressed_bytes=10_000)
