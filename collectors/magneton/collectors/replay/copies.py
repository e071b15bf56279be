"""Copies of the tensors of a call, with the same strides and alignment, and so many that the cache cannot hold them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneton.collectors.replay.windows import NotRepeatableError, host_cache_bytes, host_free_bytes, turns_for
from magneton.collectors.torch.profile import import_torch

# A copy has the alignment of its original, modulo this many bytes. Libraries choose kernels by alignment.
_ALIGNMENT = 256


@dataclass(frozen=True)
class Rotation:
    """Sets of arguments that are used in turn.

    Attributes:
        calls: arguments and keyword arguments of each.
        bytes_each: bytes of the tensors of one.
        cache_bytes: size of the largest cache; None where it is not known.
        cold: together they are so large that a set is no longer in the cache when it is used again.
    """

    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    bytes_each: int
    cache_bytes: int | None
    cold: bool


def cache_bytes(device: Any) -> int | None:
    """Return the size of a device's largest cache, bytes; None where it is not known."""
    torch = import_torch()
    if device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
        return int(size) if size else None
    return host_cache_bytes() if device.type == "cpu" else None


def _free_bytes(device: Any) -> int:
    torch = import_torch()
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else host_free_bytes()


def copy_tensor(tensor: Any) -> Any:
    """Return a tensor of the same values, shape, strides and alignment in memory of its own.

    Raises:
        NotRepeatableError: it is not a plain strided tensor.
    """
    torch = import_torch()
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotRepeatableError(
            f"an argument is a {type(tensor).__name__} of layout {tensor.layout}, which is not copied"
        )
    flags = (tensor.is_conj(), tensor.is_neg())
    source = tensor.detach()
    if any(flags):
        raise NotRepeatableError("an argument is a lazy conjugate or negative, which is not copied")
    if tensor.numel() == 0:
        return source.clone().requires_grad_(tensor.requires_grad)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    shift = tensor.data_ptr() % _ALIGNMENT // max(tensor.element_size(), 1)
    memory = torch.empty(extent + shift, dtype=tensor.dtype, device=tensor.device)
    memory[shift:].copy_(source.as_strided((extent,), (1,)))
    made = memory.as_strided(tensor.shape, tensor.stride(), shift)
    return made.requires_grad_(True) if tensor.requires_grad else made


def _key(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def copy_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return copies of a call's arguments; a tensor that is given twice is copied once.

    Raises:
        NotRepeatableError: a tensor cannot be copied.
    """
    torch = import_torch()
    known: dict[tuple[Any, ...], Any] = {}

    def one(tensor: Any) -> Any:
        plain = tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        key = _key(tensor) if plain and tensor.numel() else None
        if key is not None and key in known:
            return known[key]
        made = copy_tensor(tensor)
        if key is not None:
            known[key] = made
        return made

    pytree = torch.utils._pytree
    copied_args, copied_kwargs = pytree.tree_map_only(torch.Tensor, one, (tuple(args), dict(kwargs)))
    return copied_args, copied_kwargs


def tensors_of(*values: Any) -> list[Any]:
    """Return the tensors in nested arguments, each once."""
    torch = import_torch()
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return list({id(leaf): leaf for leaf in leaves}.values())


def rotate(args: Sequence[Any], kwargs: Mapping[str, Any], *, copies: int | None = None, outputs: int = 0) -> Rotation:
    """Return copies of a call's arguments, to be used in turn.

    Args:
        args: arguments.
        kwargs: keyword arguments.
        copies: number of sets. By default so many that the largest cache cannot hold them all, within a quarter of the free
            memory.
        outputs: bytes that each call writes. Outputs are kept until their set is used again, so they need memory too.

    Raises:
        NotRepeatableError: a tensor cannot be copied, or there is no room for one copy.
    """
    tensors = tensors_of(args, kwargs)
    size = sum(t.numel() * t.element_size() for t in tensors)
    if not size:
        return Rotation(((tuple(args), dict(kwargs)),), 0, None, True)
    device = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
    cache = cache_bytes(device)
    count, cold = turns_for(size, cache, _free_bytes(device) * size // (size + outputs), copies)
    calls = tuple(copy_call(args, kwargs) for _ in range(count))
    return Rotation(calls, size, cache, cold)
