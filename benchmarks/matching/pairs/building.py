"""What the families of pairs are built with: seeds, initialisation, marks inside modules of other libraries.

A *factory* takes nothing and returns ``(module or step, inputs, labels)``; ``labels`` maps paths of modules to the
canonical names of what they return. Everything is built anew on each call, from fixed seeds, so that both sides of a
pair hold the same weights without sharing memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from benchmarks.matching.marks import mark

Program = nn.Module | Callable[..., Any]
Case = tuple[Program, Sequence[Any], Mapping[str, str]]
Factory = Callable[[], Case]
Pair = tuple[Factory, Factory]

SEED = 1234


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Draw from a stream of its own inside the block and leave the surrounding one where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def integers(high: int, *shape: int, seed: int = SEED + 1) -> Tensor:
    """Random integers in [0, high) of a shape."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = SEED + 2) -> Tensor:
    """Standard normal float32 values of a shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def perturb(module: nn.Module, seed: int = SEED + 3) -> nn.Module:
    """Randomise what is initialised to one constant (zero biases, norms of one), so that nothing agrees by accident.

    Values are moved by about a fifth of their size (a tenth around zero); running variances stay positive.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if not tensor.is_floating_point() or tensor.numel() < 2 or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if tensor.min() == tensor.max():
                noise = torch.randn(tensor.shape, generator=generator)
                scale = 0.2 * tensor.abs().max().item() or 0.1
                tensor.add_(scale * noise.clamp(-3, 3).to(tensor.dtype))
    return module


def prepared(module: nn.Module, perturbed: bool) -> nn.Module:
    """Return the module in eval mode, perturbed where asked for."""
    module = module.eval()
    return perturb(module) if perturbed else module


def both(name: str, a: Callable[[bool], Case], b: Callable[[bool], Case]) -> dict[str, Pair]:
    """Return a pair in two versions: as initialised by default, and perturbed."""
    return {
        f"{name}/default": (partial(a, False), partial(b, False)),
        f"{name}/perturbed": (partial(a, True), partial(b, True)),
    }


def mark_input(module: nn.Module, name: str) -> None:
    """Mark the first argument of every call of a module, without a hook (hooks switch fused paths off)."""
    forward = module.forward

    def marking(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(mark(name, first), *args, **kwargs)

    module.forward = marking  # type: ignore[method-assign]


def _marked_attention(inner: Callable[..., Any] | None, module: nn.Module, *qkv: Any, **kwargs: Any) -> Any:
    """Run an attention function of Transformers, marking queries, keys, values and what it returns."""
    query, key, value, *rest = qkv
    prefix = getattr(module, "mark_prefix", None)
    run = inner or sys.modules[type(module).__module__].eager_attention_forward
    if prefix is None:
        return run(module, query, key, value, *rest, **kwargs)
    query, key, value = mark(f"{prefix}.q", query), mark(f"{prefix}.k", key), mark(f"{prefix}.v", value)
    context, weights = run(module, query, key, value, *rest, **kwargs)
    if weights is not None:
        mark(f"{prefix}.weights", weights)
    return mark(f"{prefix}.context", context), weights


AttentionInterface.register("marked_eager", partial(_marked_attention, None))
AttentionMaskInterface.register("marked_eager", eager_mask)
AttentionInterface.register("marked_sdpa", partial(_marked_attention, sdpa_attention_forward))
AttentionMaskInterface.register("marked_sdpa", sdpa_mask)


def mark_attentions(model: nn.Module, prefixes: Mapping[str, str]) -> None:
    """Name the attention modules of a Transformers model built with ``marked_eager`` or ``marked_sdpa``."""
    modules = dict(model.named_modules())
    for path, prefix in prefixes.items():
        modules[path].mark_prefix = prefix  # type: ignore[assignment]


class Output(nn.Module):
    """A Transformers model that takes positional inputs and returns one tensor of its output."""

    def __init__(self, model: nn.Module, *names: str, field: str, **constants: Any) -> None:
        super().__init__()
        self.model = model
        self.names, self.field, self.constants = names, field, constants

    def forward(self, *inputs: Tensor) -> Tensor:
        """Pass the inputs by name."""
        return getattr(self.model(**dict(zip(self.names, inputs, strict=True)), **self.constants), self.field)


def parameter(x: Tensor) -> nn.Parameter:
    """A parameter of its own that holds the values of ``x``."""
    return nn.Parameter(x.detach().clone())


def copy_parameters(target: nn.Module, source: nn.Module, names: Mapping[str, str]) -> None:
    """Load the state of ``source`` into ``target``, renaming by replacement; every entry must find its place."""
    renamed = {}
    for name, value in source.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)  # noqa: PLW2901
        renamed[name] = value
    target.load_state_dict(renamed)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, heads * width) to (batch, heads, tokens, width)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, tokens, width) to (batch, tokens, heads * width)."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def eager_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Attention in single operators; (batch, heads, tokens, width) each."""
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    return F.softmax(scores, dim=-1) @ v


def causal_bias(tokens: int) -> Tensor:
    """A (tokens, tokens) mask to add: 0 where a token may look, -inf where it may not."""
    return torch.full((tokens, tokens), float("-inf")).triu(1)
