"""Text files as they come: packed, cut, oversized."""

from __future__ import annotations

import gzip
import hashlib

import pytest
import zstandard

from magneton.schemas.errors import (
    InputFormatError,
    InputNotFoundError,
    LimitExceededError,
    UnsupportedCompressionError,
)
from magneton.transforms.reading.textfile import TextFile, head, read_bytes

TEXT = "".join(f"line {i}\n" for i in range(20000)).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("name", ["a.csv", "a.gz", "a.zst", "a"])
def test_packing_is_told_by_content(tmp_path, pack, name):
    path = tmp_path / name
    path.write_bytes(pack(TEXT) + pack(b"end"))
    text = TextFile(path)
    assert list(text) == [*(f"line {i}" for i in range(20000)), "end"]
    assert not text.truncated and not text.final_newline
    assert (
        read_bytes(path) == TEXT + b"end" and head(path).startswith("line 0\nline 1\n") and len(head(path)) == 1 << 16
    )


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_what_is_cut_is_read_as_far_as_it_goes(tmp_path, pack):
    path = tmp_path / "a"
    packed = pack("\n".join(hashlib.sha256(b"%d" % i).hexdigest() for i in range(9000)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    text = TextFile(path)
    assert len(list(text)) > 100 and text.truncated
    with pytest.raises(InputFormatError, match="stops in the middle"):
        read_bytes(path)


def test_garbage_limits_and_absence(tmp_path):
    path = tmp_path / "a"
    for read in (lambda p: list(TextFile(p)), read_bytes, head):
        path.write_bytes(b"\x1f\x8bnot gzip at all")
        with pytest.raises(InputFormatError):
            read(path)
        path.write_bytes(b"BZh91AY")
        with pytest.raises(UnsupportedCompressionError):
            read(path)
        with pytest.raises(InputNotFoundError):
            read(tmp_path / "absent")
    path.write_bytes(gzip.compress(b"x\n") + b"garbage")
    text = TextFile(path)
    assert list(text) == ["x"] and text.garbage == 7
    path.write_bytes(gzip.compress(b"x" * (3 << 20)))
    with pytest.raises(LimitExceededError, match="line"):
        list(TextFile(path))
    assert len(head(path)) == 1 << 16
    path.write_bytes(gzip.compress(b"x\n" * (1 << 20)))
    for read in (lambda p: list(TextFile(p, max_bytes=1000)), lambda p: read_bytes(p, max_bytes=1000)):
        with pytest.raises(LimitExceededError):
            read(path)
    assert next(iter(TextFile(path))) == "x"  # left in the middle


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"good\nb\xffd\n\xf0\x9f\n")
    text = TextFile(path)
    assert list(text) == ["good", "b\ufffdd", "\ufffd"] and text.replaced == 2
