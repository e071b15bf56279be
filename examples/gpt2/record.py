"""Record one forward pass of GPT-2 twice: as Transformers runs it with eager attention, and written by hand with fused operators.

Both models hold the same random weights and read the same tokens; that their outputs agree is checked before anything is
recorded. They differ in how they compute:

* attention: matmul, scale, mask, softmax, matmul (``attn_implementation="eager"``) against one
  ``scaled_dot_product_attention``;
* GELU: eight elementwise operators (``gelu_new``) against one ``gelu(approximate="tanh")``;
* around them: a mask built and added against none, reshapes that copy against views where views do.

Usage, from the root of the project with ``pip install 'magneton[examples]'``::

    python examples/gpt2/record.py --out runs

leaves ``runs/gpt2-hf`` and ``runs/gpt2-fused`` and prints the time per step of each, without the profiler.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from magneton.collectors import Workload, record

LAYERS, HEADS, WIDTH, VOCABULARY = 4, 4, 128, 1024
BATCH, TOKENS = 4, 256
WARMUP_STEPS, STEPS = 2, 5
SEED = 0
TOLERANCE = 1e-4


class Projection(nn.Module):
    """An affine map as one ``addmm``; the weight is stored as (in, out), as GPT-2 checkpoints have it."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.empty(width_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class InputEmbedding(nn.Module):
    """Token and position embeddings, added."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.n_embd)
        self.position = nn.Embedding(config.n_positions, config.n_embd)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to (batch, tokens, width)."""
        return self.token(ids) + self.position.weight[: ids.shape[1]]


class FusedAttention(nn.Module):
    """Causal self-attention: one projection to queries, keys and values, one attention operator."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.n_head
        self.qkv = Projection(config.n_embd, 3 * config.n_embd)
        self.out = Projection(config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class FusedMLP(nn.Module):
    """Two projections with one GELU operator between them."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.up = Projection(config.n_embd, 4 * config.n_embd)
        self.down = Projection(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class FusedBlock(nn.Module):
    """Attention and MLP, each behind a layer norm and beside a residual connection."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attention = FusedAttention(config)
        self.mlp_norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = FusedMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class FusedGPT2(nn.Module):
    """GPT-2 with a language-model head tied to the token embedding."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.embedding = InputEmbedding(config)
        self.blocks = nn.ModuleList(FusedBlock(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def load_transformers(self, model: GPT2LMHeadModel) -> FusedGPT2:
        """Take over the weights of a Transformers GPT-2 of the same configuration."""
        names = {
            "transformer.wte.": "embedding.token.",
            "transformer.wpe.": "embedding.position.",
            "transformer.h.": "blocks.",
            "transformer.ln_f.": "norm.",
            "lm_head.": "head.",
            "ln_1.": "attention_norm.",
            "ln_2.": "mlp_norm.",
            "attn.c_attn.": "attention.qkv.",
            "attn.c_proj.": "attention.out.",
            "mlp.c_fc.": "mlp.up.",
            "mlp.c_proj.": "mlp.down.",
        }
        weights = {}
        for name, weight in model.state_dict().items():
            ours = name
            for old, new in names.items():
                ours = ours.replace(old, new)
            weights[ours] = weight
        self.load_state_dict(weights)
        return self


def seconds_per_step(model: nn.Module, ids: Tensor) -> float:
    """Return the median time of a steady step without any profiler."""
    taken = []
    for _ in range(WARMUP_STEPS + STEPS):
        start = time.perf_counter()
        model(ids)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[WARMUP_STEPS:])


def main() -> None:
    """Build both models, check that they agree, record both."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--out", type=Path, default=Path("runs"), help="directory for the two recordings")
    arguments.add_argument("--overwrite", action="store_true", help="replace earlier recordings there")
    options = arguments.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        n_positions=TOKENS,
        vocab_size=VOCABULARY,
        activation_function="gelu_new",
        attn_implementation="eager",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers_model = GPT2LMHeadModel(config).eval()
    fused_model = FusedGPT2(config).eval().load_transformers(transformers_model)
    ids = torch.randint(VOCABULARY, (BATCH, TOKENS))

    with torch.inference_mode():
        torch.testing.assert_close(fused_model(ids), transformers_model(ids).logits, atol=TOLERANCE, rtol=TOLERANCE)
        for label, system, model in (
            ("gpt2-hf", "transformers", transformers_model),
            ("gpt2-fused", "pytorch", fused_model),
        ):
            print(f"{label}: {1e3 * seconds_per_step(model, ids):.1f} ms per step without profiler")
            workload = Workload(
                model="gpt2 (random weights)",
                batch=BATCH,
                input_tokens=BATCH * TOKENS,
                steps=STEPS,
                warmup_steps=WARMUP_STEPS,
                details={
                    "what": "forward pass, logits of all tokens",
                    "layers": LAYERS,
                    "heads": HEADS,
                    "width": WIDTH,
                    "vocabulary": VOCABULARY,
                    "tokens_per_sequence": TOKENS,
                    "dtype": "float32",
                    "threads": 1,
                    "seed": SEED,
                },
            )
            path = options.out / label
            captures = ("profile", "values")
            with record(
                path, captures=captures, system=system, workload=workload, overwrite=options.overwrite
            ) as recorder:
                recorder.run(model, (ids,))
            print(f"{label}: recorded in {path}")


if __name__ == "__main__":
    main()
