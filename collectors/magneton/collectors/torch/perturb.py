"""A second input of the same kind. Values that agree by accident for one input do not agree for the second."""

from __future__ import annotations

from typing import Any

from magneton.collectors.torch.profile import import_torch

torch: Any = import_torch()

# Integers with a smaller range are masks, kinds or flags, and are not changed.
_FEW = 3


def perturbed(inputs: Any, seed: int = 1) -> Any:
    """Return inputs of the same structure, shapes and kinds with other content.

    Floating-point tensors are drawn anew with the mean and deviation they had. In integer tensors the greatest value (an end
    mark, a padding) stays where it is, and the others change within their range. Some tensors are not changed: booleans,
    integers that only count positions, and integers with a range of at most 2. A tensor that occurs twice occurs twice in the
    result. Everything else stays as it is.

    Args:
        inputs: tensors in lists, tuples and dicts.
        seed: seed of the random numbers. The state of the program's own random generators is not touched.
    """
    generator = torch.Generator().manual_seed(seed)
    known: dict[int, Any] = {}

    def change(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if id(item) not in known:
            known[id(item)] = _changed(item, generator)
        return known[id(item)]

    with torch.no_grad():
        return torch.utils._pytree.tree_map(change, inputs)


def _changed(tensor: Any, generator: Any) -> Any:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.numel() == 0:
        return tensor
    if tensor.is_complex():
        parts = _drawn(torch.view_as_real(tensor.resolve_conj()), generator)
        new = torch.view_as_complex(parts.contiguous())
    elif tensor.is_floating_point():
        new = _drawn(tensor, generator)
    elif tensor.dtype == torch.bool:
        return tensor
    else:
        new = _shuffled_range(tensor)
    new = new.to(dtype=tensor.dtype, device=tensor.device)
    if new.stride() != tensor.stride() and not tensor.is_contiguous() and 0 not in tensor.stride():
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=new.dtype, device=new.device).copy_(new)
    return new.requires_grad_(tensor.requires_grad) if tensor.is_leaf else new


def _drawn(tensor: Any, generator: Any) -> Any:
    values = tensor.detach().to(device="cpu", dtype=torch.float32)
    finite = values[values.isfinite()]
    if not finite.numel():
        return tensor.detach().clone()
    drawn = torch.randn(values.shape, generator=generator, dtype=torch.float32)
    drawn = drawn * finite.std(correction=0) + finite.mean()
    # Values with natural bounds (probabilities, pixels) stay within the bounds that were seen.
    drawn = drawn.clamp(finite.amin(), finite.amax())
    return torch.where(values.isfinite(), drawn, values)


def _shuffled_range(tensor: Any) -> Any:
    values = tensor.detach().to(device="cpu", dtype=torch.int64)
    low, high = int(values.min()), int(values.max())
    flat = values.reshape(-1, values.shape[-1]) if values.dim() else values.reshape(1, 1)
    if high - low < _FEW or bool((flat.diff(dim=1) > 0).all()):
        return tensor.detach().clone()
    # A rotation: the number of different values is kept, and every value changes.
    span = high - low
    return torch.where(values == high, values, low + (values - low + span // 3 + 1) % span)
