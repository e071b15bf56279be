"""Run the program of a pair: with its labels heard, and on a second input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from benchmarks.matching.marks import Listener, listening

# A module, or any other callable such as a training step.
Program = Callable[..., Any]
Case = tuple[Program, Sequence[Any], Mapping[str, str]]
Factory = Callable[[], Case]


def call(program: Program, inputs: Sequence[Any]) -> Any:
    """Run a module without gradients, any other callable (a training step) as it comes."""
    with torch.set_grad_enabled(not isinstance(program, nn.Module)):
        return program(*inputs)


def modules_of(program: Program) -> dict[str, nn.Module]:
    """Modules by path: of the module itself, or of those a callable holds (as attributes, arguments or closure).

    Where a callable holds one module, paths start inside it, and also at the name it has there.
    """
    if isinstance(program, nn.Module):
        return dict(program.named_modules())
    held: dict[str, Any] = dict(getattr(program, "__dict__", {}))
    owner = getattr(program, "__self__", None)
    if owner is not None:
        held |= getattr(owner, "__dict__", {})
    held |= getattr(program, "keywords", None) or {}
    held |= {str(i): value for i, value in enumerate(getattr(program, "args", ()))}
    function = getattr(program, "func", program)
    if isinstance(function, FunctionType):
        names = function.__code__.co_freevars
        held |= {n: c.cell_contents for n, c in zip(names, function.__closure__ or (), strict=True)}
        held |= {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__}
    roots = {name: value for name, value in held.items() if isinstance(value, nn.Module)}
    found: dict[str, nn.Module] = {}
    for name, root in roots.items():
        for path, module in root.named_modules():
            found[f"{name}.{path}" if path else name] = module
            if len({id(r) for r in roots.values()}) == 1:
                found.setdefault(path, module)
    return found


def first_tensor(value: Any) -> Tensor | None:
    """The tensor a module returns: itself, the first of a sequence, or the first field of an output class."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None


@contextmanager
def labelled(program: Program, labels: Mapping[str, str], listener: Listener) -> Iterator[None]:
    """Call ``listener(name, tensor)`` for what the labelled modules return and for every mark, as they run.

    The modules' ``forward`` is wrapped. Hooks would change what runs: ``nn.TransformerEncoderLayer`` takes no fused path when it has
    hooks.

    Raises:
        KeyError: if a label names a module the program does not have.
    """
    modules = modules_of(program)
    missing = labels.keys() - modules.keys()
    if missing:
        raise KeyError(f"no module {sorted(missing)[0]!r} in the program (it has {len(modules)})")
    wrapped: list[tuple[nn.Module, Any]] = []
    for path, label in labels.items():
        module = modules[path]
        inner, earlier = module.forward, module.__dict__.get("forward")

        def forward(*args: Any, _inner: Any = inner, _label: str = label, **kwargs: Any) -> Any:
            value = _inner(*args, **kwargs)
            tensor = first_tensor(value)
            if tensor is not None:
                listener(_label, tensor)
            return value

        module.forward = forward
        wrapped.append((module, earlier))
    try:
        with listening(listener):
            yield
    finally:
        for module, earlier in reversed(wrapped):
            if earlier is None:
                del module.__dict__["forward"]
            else:
                module.forward = earlier


def second_input(x: Tensor) -> Tensor:
    """Return another input like ``x``, element by element, so that any layout, split or rounding of it corresponds.

    Floating values keep zeros and their scale, but many change sign. Integers move within their range; the largest (an
    end mark) stays, and so does what holds two or three kinds of values (masks, flags).
    """
    if x.is_floating_point() and not x.is_complex():
        wide = x.double()
        turned = wide * (0.3 + torch.cos(2.5 * wide.abs().clamp_min(1e-30).log() + (wide < 0)))
        turned = torch.where(wide.isfinite() & (wide.abs() < 1e30), turned, wide)
        if x.dtype is torch.float32 and bool((wide == x.bfloat16().double()).all()):
            turned = turned.bfloat16()
        return torch.empty_like(x).copy_(turned)
    if x.dtype is torch.bool or x.is_complex() or x.numel() == 0:
        return x.clone()
    low, high = int(x.min()), int(x.max())
    if high - low < 3:
        return x.clone()
    # A rotation: as many different values as before, and none where it was.
    span = high - low
    return torch.where(x == high, x, low + (x - low + span // 3 + 1) % span)


def second_inputs(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return other inputs of the same kind and shape."""
    return tuple(tree_map_only(Tensor, second_input, tuple(inputs)))
