"""Reading torch tensors for fingerprints: axes in the order of memory, float32, pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import TracebackType
from typing import Any

from magneton.collectors.torch.profile import import_torch

torch: Any = import_torch()

# Elements beyond this, or at 0.99 of what the dtype holds, count as infinite: `-inf` and `finfo.min` masks are one mask.
INFINITE = 1e30
# What stands for NaN in a sketch, relative to the root mean square of the finite part; infinities stand at 1 and -1.
NAN_MARK = 0.7
# Elements that are converted or copied at once.
PIECE = 1 << 21
# Numbers of 64 bits that large in a tensor of no axes are addresses that a library hands around.
_ADDRESS = 1 << 40


def why_unreadable(tensor: Any) -> str | None:
    """Return why a tensor's elements cannot be fingerprinted, or None if they can."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return "sparse" if "sparse" in str(tensor.layout) else "opaque"
    if tensor.is_quantized:
        return "quantized"
    if hasattr(type(tensor), "__tensor_flatten__"):
        return "subclass"
    if tensor.device.type == "meta":
        return "meta"
    if tensor.numel() == 0:
        return "empty"
    if tensor.untyped_storage().nbytes() == 0:
        return "freed"
    if not _has_arithmetic(tensor.dtype):
        return "dtype"
    if tensor.dim() == 0 and tensor.dtype == torch.int64 and abs(int(tensor.item())) >= _ADDRESS:
        return "opaque"
    return None


@lru_cache(maxsize=64)
def _has_arithmetic(dtype: Any) -> bool:
    """Tell whether elements of a type can be turned into numbers, by trying."""
    try:
        torch.zeros(1, dtype=dtype, device="cpu").to(torch.complex64)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


class Plain:
    """A context in which nothing the program has set up (autocast, modes, gradients) changes how operators compute."""

    def __enter__(self) -> None:
        self._guards = [torch._C._DisableAutocast(), torch._C.DisableTorchFunction()]
        for guard in self._guards:
            guard.__enter__()
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch._C._set_grad_enabled(self._grad)
        for guard in reversed(self._guards):
            guard.__exit__(kind, error, trace)


class TensorView:
    """A tensor with its axes in the order of memory, and how to read it in float32.

    Attributes:
        tensor: the tensor as it was given.
        axes: its axes longer than 1, from the largest stride to the smallest.
        ordered: the tensor with just these axes, in this order.
        infinite: magnitude from which elements count as infinite.
        numel: number of elements.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        axes = [(-s, a) for a, (n, s) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if n > 1]
        self.axes = [a for _, a in sorted(axes)]
        squeezed = [a for a, n in enumerate(tensor.shape) if n == 1]
        ordered = tensor.permute(squeezed + self.axes)
        for _ in squeezed:
            ordered = ordered[0]
        self.ordered = ordered
        self.infinite = INFINITE
        if tensor.is_floating_point():
            self.infinite = min(INFINITE, 0.99 * torch.finfo(tensor.dtype).max)
        self.numel = tensor.numel()

    def read(self, piece: Any, mark: float | None = None, *, shift: float = 0.0) -> Any:
        """Return a piece as contiguous float32.

        Args:
            piece: part of the tensor.
            mark: scale at which NaN and infinities are marked; None: there are none.
            shift: taken off every element.
        """
        values = piece.to(torch.float32).contiguous()
        if mark is not None:
            marked = values.masked_fill(values.isnan(), NAN_MARK * mark)
            marked = marked.masked_fill(values >= self.infinite, mark)
            values = marked.masked_fill(values <= -self.infinite, -mark)
        return values - shift if shift else values


def pieces(tensor: Any, limit: int = PIECE) -> Iterator[tuple[int, Any]]:
    """Yield pieces of at most ``limit`` elements, each a range of the row-major order, with where it starts."""
    if tensor.numel() <= limit or not tensor.dim():
        yield 0, tensor
        return
    size = tensor.numel() // tensor.shape[0]
    if size > limit:
        for index in range(tensor.shape[0]):
            for start, piece in pieces(tensor[index], limit):
                yield index * size + start, piece
        return
    step = limit // size
    for index in range(0, tensor.shape[0], step):
        yield index * size, tensor.narrow(0, index, min(step, tensor.shape[0] - index))
