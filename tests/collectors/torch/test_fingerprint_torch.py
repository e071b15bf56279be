"""Fingerprints of torch tensors against a plain computation in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.collectors.torch import tensor_reading, tensor_sketch, tensor_statistics  # noqa: E402
from magneton.collectors.torch.fingerprint import Fingerprint  # noqa: E402
from magneton.schemas import sketch as sk  # noqa: E402


def randn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fingerprint(*tensors: Any) -> Fingerprint:
    found = Fingerprint()
    for tensor in tensors:
        found.add(tensor)
    return found


def plain(tensor: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return elements in float64 with holes marked, and which are finite."""
    x = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double().numpy()
    limit = min(1e30, 0.99 * torch.finfo(tensor.dtype).max) if tensor.dtype.is_floating_point else 1e30
    finite = np.abs(x) < limit
    scale = math.sqrt(np.square(x[finite]).mean()) if finite.any() else 0.0
    scale = scale or 1.0
    marked = np.where(np.isnan(x), 0.7 * scale, np.where(x >= limit, scale, np.where(x <= -limit, -scale, x)))
    return marked, finite


def holes(dtype: Any = torch.float32) -> Any:
    x = randn(8, 32, 20)
    x[0, 0, 0] = math.nan
    x[1, 1] = -math.inf
    x[2, 2, 2:9] = math.inf
    return x.to(dtype)


def finfo_mask() -> Any:
    x = randn(64, 64).half()
    x[torch.ones(64, 64).triu(1) != 0] = torch.finfo(torch.float16).min
    return x


CASES = {
    "contiguous": lambda: randn(8, 64, 96),
    "transposed": lambda: randn(8, 64, 96).transpose(1, 2),
    "part of a fused projection": lambda: randn(128, 288)[:, 96:192],
    "heads": lambda: randn(4, 16, 6, 32).transpose(1, 2),
    "scores": lambda: randn(2, 3, 64, 64),
    "channels last": lambda: randn(3, 4, 5, 6).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: randn(20, 30).expand(5, 20, 30),
    "vector": lambda: randn(5000),
    "long vector": lambda: randn(3_000_000),
    "wide rows": lambda: randn(70, 70_000),
    "small": lambda: randn(4, 4),
    "odd": lambda: randn(1, 17, 1),
    "bfloat16": lambda: randn(8, 64, 96).bfloat16(),
    "half in pieces": lambda: randn(3, 800_000).half(),
    "float64": lambda: randn(30, 40).double(),
    "float8_e4m3fn": lambda: randn(20, 30).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: randn(20, 30).to(torch.float8_e5m2),
    "complex": lambda: torch.complex(randn(20, 30), randn(20, 30, seed=1)),
    "conjugate": lambda: torch.complex(randn(20, 30), randn(20, 30, seed=1)).conj(),
    "int64": lambda: torch.arange(1000).view(10, 100),
    "uint8": lambda: torch.arange(240, dtype=torch.uint8).view(2, 120),
    "mostly mean": lambda: randn(1000) + 1e4,
    "large": lambda: randn(1000) * 1e20,
    "tiny": lambda: randn(300, 40) * 1e-20,
    "holes": holes,
    "holes in bfloat16": lambda: holes(torch.bfloat16),
    "finfo mask": finfo_mask,
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_statistics_and_sketches_are_those_of_the_elements(make: Any) -> None:
    tensor = make()
    found = fingerprint(tensor)
    stats = found.statistics
    assert stats is not None
    x, finite = plain(tensor)
    values = x[finite]
    assert stats.holes == (~finite).sum()
    scale = np.abs(values).mean()
    assert stats.mean == pytest.approx(values.mean(), abs=1e-6 * scale)
    assert stats.std == pytest.approx(values.std(), rel=1e-5)
    assert stats.l1 == pytest.approx(np.abs(values).sum(), rel=1e-6)
    assert stats.l2_squared == pytest.approx(np.square(values).sum(), rel=1e-6)
    assert stats.sum_cubes == pytest.approx((values**3).sum(), abs=1e-6 * (np.abs(values) ** 3).sum())
    assert stats.l4_fourth == pytest.approx((values**4).sum(), rel=1e-6)
    assert (stats.min, stats.max) == (values.min(), values.max())
    centred = x - values.mean()
    norm = np.linalg.norm(centred)
    expected = [sk.sketch(centred, way) for way in sk.assignments(x.shape)] + [sk.flat_sketch(centred)]
    keys = [sk.arrangement_key(x.shape)] * (len(expected) - 1) + [sk.flat_key(x.size)]
    assert [key for key, _ in found.sketches] == keys
    for (_, buckets), reference in zip(found.sketches, expected, strict=True):
        assert np.linalg.norm(buckets - reference) < 3e-6 * norm
    assert [dims[0] for dims, _, _ in found.slices] == [x.shape[axis] for axis in short_axes(x.shape)]
    for axis, (dims, buckets, norms) in zip(short_axes(x.shape), found.slices, strict=True):
        turned = np.moveaxis(x, axis, 0)
        assert dims == tuple(n for n in turned.shape if n > 1)
        for mine, own_norm, part in zip(buckets, norms, turned, strict=True):
            assert np.linalg.norm(mine - sk.sketch(part)) < 3e-6 * np.linalg.norm(x)
            assert own_norm == pytest.approx(np.linalg.norm(part), rel=1e-5)


def short_axes(shape: tuple[int, ...]) -> list[int]:
    """The axes that are sliced: the first longer than 1 (up to 16), and another (up to 8) that no third one equals."""
    axes = [a for a, n in enumerate(shape) if n > 1]
    first = [a for a in axes[:1] if shape[a] <= 16]
    for inner in [a for a in axes[1:] if shape[a] <= 8][:1]:
        third = [shape[a] for a in axes if a != inner and a not in first]
        if third and shape[inner] not in third and not any(shape[a] in third for a in first):
            return [*first, inner]
    return first


def test_quantiles() -> None:
    x = torch.arange(10001, dtype=torch.float32)[torch.randperm(10001, generator=torch.Generator().manual_seed(0))]
    found = fingerprint(x).statistics
    assert found is not None
    assert found.quantiles == pytest.approx([1250, 2500, 5000, 7500, 8750], abs=200)
    small = fingerprint(torch.arange(9.0)).statistics
    assert small is not None
    assert small.quantiles == [1, 2, 4, 6, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_constant_tensors(dtype: Any) -> None:
    found = fingerprint(torch.full((4, 8), 3.0).to(dtype))
    assert found.statistics is not None
    assert (found.statistics.mean, found.statistics.std, found.statistics.holes) == (3.0, 0.0, 0)
    assert all(not buckets.any() for _, buckets in found.sketches)


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
def test_nothing_finite(fill: float) -> None:
    found = fingerprint(torch.full((4, 8), fill))
    stats = found.statistics
    assert stats is not None
    assert stats.holes == 32
    assert math.isnan(stats.mean)
    other = fingerprint(torch.full((4, 8), math.nan if fill != fill or fill > 0 else math.inf))
    if fill == fill:
        assert np.linalg.norm(found.sketches[0][1] - other.sketches[0][1]) > 0.1


def test_minus_infinity_and_the_least_of_the_type_are_one_mask() -> None:
    mask = torch.ones(32, 32).triu(1) != 0
    prints = [
        fingerprint(torch.zeros(32, 32, dtype=dtype).masked_fill(mask, fill))
        for dtype, fill in (
            (torch.float32, -math.inf),
            (torch.float32, torch.finfo(torch.float32).min),
            (torch.float16, torch.finfo(torch.float16).min),
            (torch.bfloat16, torch.finfo(torch.bfloat16).min),
            (torch.float32, -1e30),
        )
    ]
    for other in prints[1:]:
        assert prints[0].statistics is not None
        assert other.statistics is not None
        assert prints[0].statistics.n_neginf == other.statistics.n_neginf == 32 * 31 / 2
        for (_, mine), (_, theirs) in zip(prints[0].sketches, other.sketches, strict=True):
            assert np.array_equal(mine, theirs)


def test_integers_and_booleans_have_an_exact_hash() -> None:
    x = torch.tensor([[3, 1, 2], [6, 5, 4]])
    hashes = {fingerprint(t).hash for t in (x, x.int(), x.short(), x.t().contiguous().t())}
    assert len(hashes) == 1
    assert fingerprint(x.flip(0)).hash not in hashes
    assert fingerprint(x.t()).hash not in hashes
    bools = fingerprint(x > 2)
    assert bools.hash not in hashes
    assert bools.hash != fingerprint(x > 3).hash
    assert bools.sketches == []
    assert fingerprint(x.float()).hash is None


def test_shuffled_flipped_sorted_and_mirrored_values_differ_in_order() -> None:
    x = randn(8, 32, 24)
    flat = x.flatten()
    order = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(1))
    same = fingerprint(x)
    mean = flat.mean()
    for other in (flat[order].view_as(x), x.flip(1), flat.sort()[0].view_as(x), 2 * mean - x, x.roll(1, 0)):
        found = fingerprint(other)
        norm = float((x - mean).norm())
        for (_, mine), (_, theirs) in zip(same.sketches, found.sketches, strict=True):
            assert np.linalg.norm(mine - theirs) > 0.3 * norm


def test_a_permuted_view_adds_its_order_and_a_reshaped_one_its_shape() -> None:
    x = randn(4, 12, 20)
    found = fingerprint(x, x.transpose(0, 1), x.view(48, 20), x.view(4, 12, 20))
    assert [key for key, _ in found.sketches] == ["4x12x20", "flat:960", "flat:960", "20x48"]
    other = fingerprint(x.view(48, 20).contiguous())
    assert np.allclose(other.sketches[0][1], found.sketches[3][1], atol=1e-4)


def test_a_shape_of_the_same_lengths_in_another_order_is_another_arrangement() -> None:
    x = randn(4, 12, 20)
    found = fingerprint(x, x.view(12, 4, 20))
    assert [key for key, _ in found.sketches] == ["4x12x20", "flat:960", "4x12x20"]
    assert np.linalg.norm(found.sketches[0][1] - found.sketches[2][1]) > 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.zeros(0, 3), "empty"),
        (lambda: torch.eye(4).to_sparse(), "sparse"),
        (lambda: torch.eye(4).to_sparse_csr(), "sparse"),
        (lambda: torch.quantize_per_tensor(torch.rand(4), 0.1, 0, torch.quint8), "quantized"),
        (lambda: torch.zeros(4, device="meta"), "meta"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested"),
        (lambda: torch.zeros(4).to_mkldnn(), "opaque"),
        (lambda: torch.tensor(0x7F0012345678), "opaque"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_cannot_be_read_says_why(make: Any, why: str) -> None:
    found = fingerprint(make())
    assert found.why == why
    assert found.statistics is None
    assert found.sketches == []


@pytest.mark.parametrize("make", [CASES["transposed"], CASES["holes in bfloat16"], CASES["wide rows"]])
def test_pieces_give_what_the_whole_gives(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fingerprint(make())
    for module in (tensor_reading, tensor_sketch):
        monkeypatch.setattr(module, "PIECE", 1000)
    monkeypatch.setattr(tensor_reading.pieces, "__defaults__", (1000,))
    monkeypatch.setattr(tensor_statistics, "_BLOCK", 300)
    monkeypatch.setattr(tensor_sketch, "_MAX_COLUMNS", 512)
    parts = fingerprint(make())
    assert whole.statistics is not None
    assert parts.statistics is not None
    assert parts.statistics.std == pytest.approx(whole.statistics.std, rel=1e-6)
    for (_, mine), (_, theirs) in zip(whole.sketches, parts.sketches, strict=True):
        assert np.linalg.norm(mine - theirs) < 1e-5 * np.linalg.norm(mine)
    for (_, mine, _), (_, theirs, _) in zip(whole.slices, parts.slices, strict=True):
        assert np.linalg.norm(mine - theirs) < 1e-5 * np.linalg.norm(mine)


def test_extra_memory_is_bounded() -> None:
    """A tensor that must be converted is read in pieces: far less than a copy of it in float32."""
    import resource

    x = randn(4096, 4096).half()  # 32 MiB; in float32 64 MiB
    fingerprint(x[:64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fingerprint(x.t())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 48 << 20


def test_settings_of_the_program_do_not_change_fingerprints() -> None:
    x = randn(128, 96)
    plainly = fingerprint(x)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            found = fingerprint(x.requires_grad_())
    finally:
        torch.set_float32_matmul_precision(before)
    for (_, mine), (_, theirs) in zip(plainly.sketches, found.sketches, strict=True):
        assert np.array_equal(mine, theirs)
    assert torch.is_grad_enabled()
