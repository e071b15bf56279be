"""The shared words: their order, and how people read them."""

from __future__ import annotations

import pytest

from magneton.schemas.kinds import evidence_text, in_order


@pytest.mark.parametrize(
    ("words", "ordered", "text"),
    [
        (["second_input", "values"], ["values", "second_input"], "values, on two inputs"),
        (["values"], ["values"], "values"),
        (["movement", "second_input", "values"], ["values", "second_input", "movement"], "values, on two inputs, only moves data"),
        (["name", "order", "shapes", "tree"], ["tree", "shapes", "order", "name"], "tree, shapes, order, name"),
        (["module", "kernel_class"], ["module", "kernel_class"], "module path, kind of kernel"),
        (["of a later release", "name"], ["name", "of a later release"], "name, of a later release"),
        ([], [], ""),
    ],
)  # fmt: skip
def test_evidence_stands_strongest_first_in_words_for_people(words: list[str], ordered: list[str], text: str) -> None:
    assert in_order(words) == ordered
    assert evidence_text(words) == text
