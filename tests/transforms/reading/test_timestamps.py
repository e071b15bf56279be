"""Times as text: each way of reading many at once gives what reading one at a time gives."""

from __future__ import annotations

import random

import pytest

from magneton.transforms.reading.timestamps import NotPlainError, text_to_ns, to_ns
from magneton.transforms.staging.stage import NONE


def test_times_with_and_without_digits_behind_the_point() -> None:
    """Three digits everywhere, as kineto writes them, is a way of its own; so is any mixture."""
    assert to_ns([b"3520313156464.983", b"0.001", b"-0.500"]).tolist() == [3_520_313_156_464_983, 1, -500]
    assert to_ns([b"1.5", b"", b'"2.25"', b"3e2", b"7"]).tolist() == [1500, NONE, 2250, 300_000, 7000]
    assert to_ns([b"1.0005", b"1.0015"]).tolist() == [1000, 1002]
    assert to_ns([]).tolist() == []
    assert to_ns([b"", b""]).tolist() == [NONE, NONE]


@pytest.mark.parametrize(
    "texts",
    [
        [b"[1,2]"],
        [b"1", b'"1,2"'],
        [b"1,2", b"3"],
        [b"null"],
        [b'"0x1.234"'],
        [b'"1e2.345"'],
        [b"99999999999999999.999"],
    ],
)
def test_what_is_no_time_is_looked_at_by_itself(texts: list[bytes]) -> None:
    """Lists, hexadecimal digits, two exponents and what does not fit are no plain numbers."""
    with pytest.raises(NotPlainError):
        to_ns(texts)


def test_many_at_once_equal_one_at_a_time() -> None:
    """Drawn numbers of any number of digits."""
    draw = random.Random(1)  # noqa: S311  (reproducible, not a secret)
    for same in (True, False) * 200:
        texts = []
        for _ in range(draw.randrange(1, 6)):
            digits = 3 if same else draw.randrange(7)
            behind = "".join(draw.choice("0123456789") for _ in range(digits))
            whole = draw.choice(["", "-"]) + str(draw.randrange(10 ** draw.randrange(1, 13)))
            texts.append(f"{whole}.{behind}" if digits else whole)
        assert to_ns([t.encode() for t in texts]).tolist() == [text_to_ns(t) for t in texts]
