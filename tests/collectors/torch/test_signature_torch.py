"""Signatures of torch tensors against the plain computation, and the size they may take up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.collectors.torch.fingerprint import Fingerprint  # noqa: E402
from magneton.collectors.torch.tensor_signature import SignatureBudget  # noqa: E402
from magneton.collectors.torch.values_capture import record_values  # noqa: E402
from magneton.schemas import sketch as sk  # noqa: E402


def randn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def signatures(*tensors: Any, constant: bool = False) -> dict[tuple[str, int], np.ndarray]:
    found = Fingerprint()
    for tensor in tensors:
        found.add(tensor, constant=constant, budget=SignatureBudget())
    return {(key, len(numbers)): numbers for key, numbers in found.signatures}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_and_columns_are_signed(dtype: Any) -> None:
    x = randn(3, 20, 96).to(dtype)
    plain = x.double().numpy()
    found = signatures(x)
    assert found.keys() == {("96", 60), ("3x20", 96)}
    assert np.allclose(found["96", 60], sk.signature(plain.reshape(60, 96)), atol=1e-4)
    assert np.allclose(found["3x20", 96], sk.signature(np.moveaxis(plain, 2, 0)), atol=1e-4)


def test_order_is_that_of_memory_and_a_view_adds_its_rows() -> None:
    x = randn(20, 96)
    heads = x.view(20, 6, 16).transpose(0, 1)
    found = signatures(x, heads)
    assert found.keys() == {("96", 20), ("20", 96), ("16", 120)}
    assert np.allclose(found["16", 120], sk.signature(x.double().numpy().reshape(120, 16)), atol=1e-4)


def test_a_large_tensor_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from magneton.collectors.torch import tensor_signature

    x = randn(7, 30, 24)
    whole = signatures(x)
    monkeypatch.setattr(tensor_signature, "PIECE", 100)
    for form, numbers in signatures(x).items():
        assert np.allclose(numbers, whole[form], atol=1e-5)


def test_holes_count_as_nothing() -> None:
    x = randn(20, 32)
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = math.nan, math.inf, -math.inf, torch.finfo(torch.float32).min
    plain = x.double().numpy()
    plain[[0, 1, 2, 3], [0, 1, 2, 3]] = 0.0
    assert np.allclose(signatures(x)["32", 20], sk.signature(plain), atol=1e-4)


def test_what_cannot_be_a_part_has_none() -> None:
    assert signatures(randn(20, 32), constant=True) == {}
    assert signatures(torch.ones(20, 32)) == {}
    assert signatures(torch.arange(640).view(20, 32)) == {}
    assert signatures(randn(3)) == {}
    assert signatures(randn(1, 32).expand(20, 32)) == {}
    assert signatures(randn(5000, 4)).keys() == {("5000", 4)}


def test_one_row_is_signed_by_itself() -> None:
    assert signatures(randn(1, 64))["64", 1].shape == (1, 8)


def test_the_longest_go_first_wherever_they_are_defined() -> None:
    budget = SignatureBudget(limit=1000)
    long, short = (lambda: ("96", np.ones((200, 2), np.float32))), (lambda: ("64", np.ones((1, 8), np.float32)))
    values: list[list[Any]] = [[] for _ in range(12)]
    for signatures_of_value in values:
        budget.add(signatures_of_value, [long(), short()])
    budget.trim()
    assert [[key for key, _ in found] for found in values] == [["64"]] * 12
    late: list[Any] = []
    budget.add(late, [long(), short()])
    assert [key for key, _ in late] == ["64"]


def test_a_capture_within_the_limit_keeps_all() -> None:
    budget = SignatureBudget(limit=1000)
    found: list[Any] = []
    budget.add(found, [("96", np.ones((200, 2), np.float32))])
    budget.trim()
    assert len(found) == 1


def test_the_table_holds_them() -> None:
    model = torch.nn.Linear(32, 24)
    x = randn(10, 32)
    capture = record_values(model, [x])
    rows = [r for r in capture.tensors.select(["dims", "constant", "signatures"]).to_pylist() if r["signatures"]]
    assert not any(r["constant"] for r in rows)
    entry = next(r for r in rows if r["dims"] == [10, 32])["signatures"][0]
    assert (entry["key"], entry["n_slices"]) == ("32", 10)
    assert np.allclose(np.reshape(entry["numbers"], (10, 8)), sk.signature(x.double().numpy()), atol=1e-4)
