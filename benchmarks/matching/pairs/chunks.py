"""The same tokens in other passes: prefill in chunks, a batch in parts, padding on the left, on the right or not at all.

Labels follow from how the programs are built: a tensor of the whole pass consists of the tensors of the passes in parts, token by
token. Rows of padding belong to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.cache_utils import DynamicCache

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Pair,
    both,
    eager_attention,
    integers,
    normal,
    parameter,
    perturb,
    prepared,
    seeded,
)
from benchmarks.matching.pairs.controls import Unmarked

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS = 64, 4, 3, 96, 64
PAD = 0

# Keys and values of each layer for the tokens of earlier passes.
Cache = dict[int, tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """A layer of GPT-2 that attends to the tokens of earlier passes too."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor, cache: Cache) -> Tensor:
        """Map the new tokens (batch, tokens, width) to the same shape; ``cache`` is brought up to date."""
        i, (batch, tokens, _) = self.index, x.shape
        joined = mark(f"{i}.qkv", self.qkv(mark(f"{i}.norm1", self.norm1(x))))
        q, k, v = (t.view(batch, tokens, HEADS, -1).transpose(1, 2) for t in joined.chunk(3, -1))
        if i in cache:
            k, v = torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2)
        cache[i] = k, v
        context = eager_attention(q, k, v, bias)
        x = x + mark(f"{i}.attention", self.out(context.transpose(1, 2).reshape(batch, tokens, WIDTH)))
        hidden = mark(f"{i}.hidden", F.gelu(mark(f"{i}.up", self.up(mark(f"{i}.norm2", self.norm2(x))))))
        return mark(f"{i}.layer", x + mark(f"{i}.mlp", self.down(hidden)))


class Decoder(nn.Module):
    """A small GPT-2 that is told positions and mask."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, positions: Tensor, bias: Tensor, cache: Cache) -> Tensor:
        """Map new ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = mark("embedding", self.token(ids) + self.position(positions))
        for layer in self.layers:
            x = layer(x, bias, cache)
        return mark("logits", self.head(mark("norm", self.norm(x))))


def decoder(perturbed: bool) -> Decoder:
    """The weights everyone shares."""
    with seeded():
        model = Decoder()
    prepared(model, perturbed)
    return model


def causal(first: int, stop: int) -> Tensor:
    """What tokens ``first`` to ``stop`` add to their scores with the tokens before ``stop``."""
    return torch.full((stop, stop), float("-inf")).triu(1)[first:]


class Prefill(nn.Module):
    """A prompt in passes of the given lengths."""

    def __init__(self, model: Decoder, lengths: Sequence[int]) -> None:
        super().__init__()
        self.model, self.lengths = model, tuple(lengths)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to the logits of all tokens."""
        cache: Cache = {}
        found, first = [], 0
        for length in self.lengths:
            stop = first + length
            found.append(self.model(ids[:, first:stop], torch.arange(first, stop)[None], causal(first, stop), cache))
            first = stop
        return torch.cat(found, 1)


def prefill(lengths: Sequence[int], batch: int, perturbed: bool) -> Case:
    """A prompt of ``sum(lengths)`` tokens."""
    return Prefill(decoder(perturbed), lengths), (integers(VOCABULARY, batch, sum(lengths)),), {}


class Batches(nn.Module):
    """Sequences in batches of the given sizes, one after the other."""

    def __init__(self, model: Decoder, sizes: Sequence[int]) -> None:
        super().__init__()
        self.model, self.sizes = model, tuple(sizes)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits."""
        tokens = ids.shape[1]
        return torch.cat(
            [self.model(part, torch.arange(tokens)[None], causal(0, tokens), {}) for part in ids.split(self.sizes)]
        )


def batches(sizes: Sequence[int], perturbed: bool) -> Case:
    """``sum(sizes)`` sequences of 9 tokens."""
    return Batches(decoder(perturbed), sizes), (integers(VOCABULARY, sum(sizes), 9),), {}


LENGTHS = (17, 13, 11, 12)


def _filled(x: Tensor, length: int, before: int, after: int) -> Tensor:
    return torch.cat([torch.full((before,), PAD), x[:length], torch.full((after,), PAD)])


class Padded(nn.Module):
    """Sequences of several lengths as one batch, padded on one side."""

    def __init__(self, model: Decoder, left: bool) -> None:
        super().__init__()
        self.model, self.left = model, left

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, longest) to logits; row ``i`` of ``ids`` holds ``LENGTHS[i]`` tokens at its start."""
        longest = max(LENGTHS)
        rows, positions, biases = [], [], []
        for row, length in zip(ids, LENGTHS, strict=True):
            gap = longest - length
            before, after = (gap, 0) if self.left else (0, gap)
            rows.append(_filled(row, length, before, after))
            positions.append(_filled(torch.arange(longest), length, before, after))
            bias = causal(0, longest)
            if self.left:
                bias[:, :gap] = float("-inf")
                # A token of padding looks at itself, so that no row is empty.
                bias[range(gap), range(gap)] = 0.0
            biases.append(bias)
        return self.model(torch.stack(rows), torch.stack(positions), torch.stack(biases)[:, None], {})


class OneByOne(nn.Module):
    """The same sequences each by itself, without padding."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, longest) to the logits of all tokens, one after another."""
        found = [
            self.model(row[None, :length], torch.arange(length)[None], causal(0, length), {})[0]
            for row, length in zip(ids, LENGTHS, strict=True)
        ]
        return torch.cat(found)


def padded(side: str, perturbed: bool) -> Case:
    """Four sequences, padded on the left, on the right or run alone."""
    model = decoder(perturbed)
    program = OneByOne(model) if side == "alone" else Padded(model, side == "left")
    return program, (integers(VOCABULARY - 1, len(LENGTHS), max(LENGTHS)) + 1,), {}


class Halves(nn.Module):
    """The decoder's layers over several ranks: products split by column (heads, hidden units), then by row and added up.

    All ranks run in one program, one after the other, as a reference implementation of tensor parallelism does.
    """

    def __init__(self, model: Decoder, ranks: int) -> None:
        super().__init__()
        self.model, self.ranks = model, ranks
        self.parts = nn.ModuleList(
            nn.ModuleList(nn.ParameterDict(self._part(layer, rank)) for rank in range(ranks)) for layer in model.layers
        )

    def _part(self, layer: nn.Module, rank: int) -> dict[str, nn.Parameter]:
        def columns(x: Tensor) -> Tensor:
            return x.chunk(self.ranks)[rank]

        def joined(x: Tensor) -> Tensor:
            return torch.cat([columns(t) for t in x.chunk(3)])

        return {
            "qkv": parameter(joined(layer.qkv.weight)),  # type: ignore[union-attr,arg-type]
            "qkv_bias": parameter(joined(layer.qkv.bias)),  # type: ignore[union-attr,arg-type]
            "out": parameter(layer.out.weight.chunk(self.ranks, 1)[rank].contiguous()),  # type: ignore[union-attr,operator]
            "up": parameter(columns(layer.up.weight)),  # type: ignore[union-attr,arg-type]
            "up_bias": parameter(columns(layer.up.bias)),  # type: ignore[union-attr,arg-type]
            "down": parameter(layer.down.weight.chunk(self.ranks, 1)[rank].contiguous()),  # type: ignore[union-attr,operator]
        }

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits."""
        model, tokens = self.model, ids.shape[1]
        x = mark("embedding", model.token(ids) + model.position(torch.arange(tokens)))
        for i, layer in enumerate(model.layers):
            normed = mark(f"{i}.norm1", layer.norm1(x))  # type: ignore[operator]
            attended = [self._attention(i, part, normed) for part in self.parts[i]]  # type: ignore[arg-type]
            x = x + mark(f"{i}.attention", self._reduced(attended) + layer.out.bias)  # type: ignore[union-attr]
            normed = mark(f"{i}.norm2", layer.norm2(x))  # type: ignore[operator]
            mapped = [self._mlp(i, part, normed) for part in self.parts[i]]  # type: ignore[arg-type]
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", self._reduced(mapped) + layer.down.bias))  # type: ignore[union-attr]
        return mark("logits", model.head(mark("norm", model.norm(x))))

    def _reduced(self, parts: Sequence[Tensor]) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _attention(self, i: int, part: nn.ParameterDict, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        joined = mark(f"{i}.qkv", F.linear(x, part["qkv"], part["qkv_bias"]))
        q, k, v = (t.view(batch, tokens, HEADS // self.ranks, -1).transpose(1, 2) for t in joined.chunk(3, -1))
        context = eager_attention(q, k, v, causal(0, tokens))
        return F.linear(context.transpose(1, 2).reshape(batch, tokens, -1), part["out"])

    def _mlp(self, i: int, part: nn.ParameterDict, x: Tensor) -> Tensor:
        up = mark(f"{i}.up", F.linear(x, part["up"], part["up_bias"]))
        return F.linear(mark(f"{i}.hidden", F.gelu(up)), part["down"])


def parallel(ranks: int, perturbed: bool) -> Case:
    """The decoder over some ranks."""
    return Halves(decoder(perturbed), ranks), (integers(VOCABULARY, 2, 24),), {}


class Rows(nn.Module):
    """Layers of product and norm on rows, so many at a time."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        with seeded():
            self.products = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3 * LAYERS))
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3 * LAYERS))
        perturb(self).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to the same shape."""
        return torch.cat([self._several(part) for part in x.split(self.sizes)])

    def _several(self, x: Tensor) -> Tensor:
        for i, (product, norm) in enumerate(zip(self.products, self.norms, strict=True)):
            x = mark(f"{i}.product", product(mark(f"{i}.norm", norm(x))))
            x = mark(f"{i}.layer", F.gelu(x))
        return x


def rows(sizes: Sequence[int], dtype: torch.dtype) -> Case:
    """Rows of a type, ``sizes`` at a time."""
    return Rows(sizes, dtype), (normal(sum(sizes), WIDTH).to(dtype),), {}


def transformers_prefill(lengths: Sequence[int], implementation: str, perturbed: bool) -> Case:
    """Transformers' GPT-2 with its cache, so many tokens at a time."""
    config = GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=48,
        n_positions=POSITIONS,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = GPT2LMHeadModel(config)
    prepared(model, perturbed)
    labels = {"model.transformer.drop": "embedding", "model.transformer.ln_f": "norm", "model.lm_head": "logits"}
    for i in range(LAYERS):
        path = f"model.transformer.h.{i}"
        labels |= {
            f"{path}.ln_1": f"{i}.norm1",
            f"{path}.attn.c_attn": f"{i}.qkv",
            f"{path}.attn.c_proj": f"{i}.attention",
            f"{path}.ln_2": f"{i}.norm2",
            f"{path}.mlp.c_fc": f"{i}.up",
            f"{path}.mlp.act": f"{i}.hidden",
            f"{path}.mlp.c_proj": f"{i}.mlp",
            path: f"{i}.layer",
        }
    return Passes(model, lengths), (integers(VOCABULARY, 1, sum(lengths)),), labels


class Passes(nn.Module):
    """A Transformers model run on a prompt in passes of the given lengths."""

    def __init__(self, model: nn.Module, lengths: Sequence[int]) -> None:
        super().__init__()
        self.model, self.lengths = model, tuple(lengths)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (1, tokens) to logits."""
        cache = DynamicCache()
        passes = [
            self.model(input_ids=part, past_key_values=cache, use_cache=True) for part in ids.split(self.lengths, 1)
        ]
        return torch.cat([found.logits for found in passes], 1)


def _other(case: Callable[[bool], Case], seed: int) -> Case:
    """A case with weights of its own and without labels."""
    program, inputs, _ = case(True)
    assert isinstance(program, nn.Module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in program.parameters():
            tensor.copy_(tensor.std() * torch.randn(tensor.shape, generator=generator) + tensor.mean())
    return Unmarked(program), inputs, {}


def _prefills(name: str, a: Sequence[int], b: Sequence[int], batch: int = 1) -> dict[str, Pair]:
    return both(f"chunks/{name}", partial(prefill, a, batch), partial(prefill, b, batch))


PAIRS: dict[str, Pair] = {
    **_prefills("64-32_32", (64,), (32, 32)),
    **_prefills("16-10_6", (16,), (10, 6)),
    **_prefills("64-37_27", (64,), (37, 27)),
    **_prefills("37_27-32_32", (37, 27), (32, 32)),
    **_prefills("batch-37_27-20_20_24", (37, 27), (20, 20, 24), 3),
    **both(
        "chunks/transformers-64-32_32",
        partial(transformers_prefill, (64,), "eager"),
        partial(transformers_prefill, (32, 32), "eager"),
    ),
    **both(
        "chunks/transformers-40-23_17",
        partial(transformers_prefill, (40,), "eager"),
        partial(transformers_prefill, (23, 17), "sdpa"),
    ),
    **both("batches/20-10_10", partial(batches, (20,)), partial(batches, (10, 10))),
    **both("batches/20-1x20", partial(batches, (20,)), partial(batches, (1,) * 20)),
    **both("batches/20-7_13", partial(batches, (20,)), partial(batches, (7, 13))),
    **both("batches/12_8-5_15", partial(batches, (12, 8)), partial(batches, (5, 15))),
    "precision/rows-20-1x20": (partial(rows, (20,), torch.bfloat16), partial(rows, (1,) * 20, torch.bfloat16)),
    "precision/rows-40-17_23": (partial(rows, (40,), torch.bfloat16), partial(rows, (17, 23), torch.bfloat16)),
    "batches/rows-20-1x20": (partial(rows, (20,), torch.float32), partial(rows, (1,) * 20, torch.float32)),
    **both("padding/left-alone", partial(padded, "left"), partial(padded, "alone")),
    **both("padding/right-alone", partial(padded, "right"), partial(padded, "alone")),
    **both("padding/left-right", partial(padded, "left"), partial(padded, "right")),
    **both("parallel/one-halves", partial(parallel, 1), partial(parallel, 2)),
    **both("parallel/one-quarters", partial(parallel, 1), partial(parallel, 4)),
    **both("parallel/halves-quarters", partial(parallel, 2), partial(parallel, 4)),
    "control/chunks-other_weights": (
        partial(_other, partial(prefill, (64,), 1), 5),
        partial(_other, partial(prefill, (37, 27), 1), 6),
    ),
    "control/parallel-other_weights": (
        partial(_other, partial(parallel, 1), 5),
        partial(_other, partial(parallel, 2), 6),
    ),
}
