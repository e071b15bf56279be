"""Record one forward pass of Llama twice: as Transformers runs it, and written by hand with fused projections.

Both models hold the same random weights and read the same tokens; that their outputs agree is checked before anything is
recorded. They differ in how they project:

* queries, keys and values: three matrix products against one over the joined weights;
* gate and up of the MLP: two matrix products against one over the joined weights;
* rotary angles: computed in every pass against read from a table made once.

Norms, rotation, attention (``scaled_dot_product_attention`` with grouped keys and values) and SiLU are the same.

Usage, from the root of the project with ``pip install 'magneton[examples]'``::

    python examples/llama/record.py --out runs

leaves ``runs/llama-hf`` and ``runs/llama-fused`` and prints the time per step of each without the profiler.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from magneton.collectors import Workload, record

LAYERS, HEADS, KV_HEADS, WIDTH, MLP_WIDTH, VOCABULARY = 4, 8, 2, 256, 704, 1024
BATCH, TOKENS = 2, 32
WARMUP_STEPS, STEPS = 2, 5
SEED = 0
TOLERANCE = 1e-4


class RMSNorm(nn.Module):
    """Root-mean-square norm, in the operators Transformers uses."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary(nn.Module):
    """Rotary position embedding from a table of cosines and sines (tokens, head width)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies = config.rope_parameters["rope_theta"] ** -half
        angles = torch.outer(torch.arange(config.max_position_embeddings, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate (batch, heads, tokens, head width)."""
        tokens = x.shape[-2]
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[:tokens] + torch.cat((-second, first), dim=-1) * self.sin[:tokens]


class FusedAttention(nn.Module):
    """Causal self-attention with grouped keys and values, behind one joined projection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.split = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        self.qkv = nn.Linear(config.hidden_size, sum(self.split) * self.head_dim, bias=False)
        self.rotary = Rotary(config)
        self.out = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, _ = x.shape
        heads = self.qkv(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split(self.split, dim=1)
        mixed = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class FusedMLP(nn.Module):
    """Gated MLP with gate and up in one projection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class FusedBlock(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual connection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = FusedAttention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FusedMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class FusedLlama(nn.Module):
    """Llama with a language-model head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(FusedBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def load_transformers(self, model: LlamaForCausalLM) -> FusedLlama:
        """Take over the weights of a Transformers Llama of the same configuration, joining those computed together."""
        theirs = model.state_dict()
        weights = {
            "embedding.weight": theirs["model.embed_tokens.weight"],
            "norm.weight": theirs["model.norm.weight"],
            "head.weight": theirs["lm_head.weight"],
        }
        for index in range(len(self.blocks)):
            layer, block = f"model.layers.{index}", f"blocks.{index}"
            joined = {
                "attention_norm": ["input_layernorm"],
                "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                "attention.out": ["self_attn.o_proj"],
                "mlp_norm": ["post_attention_layernorm"],
                "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
                "mlp.down": ["mlp.down_proj"],
            }
            for ours, parts in joined.items():
                weights[f"{block}.{ours}.weight"] = torch.cat([theirs[f"{layer}.{part}.weight"] for part in parts])
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
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        hidden_size=WIDTH,
        intermediate_size=MLP_WIDTH,
        max_position_embeddings=TOKENS,
        vocab_size=VOCABULARY,
        attn_implementation="sdpa",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers_model = LlamaForCausalLM(config).eval()
    fused_model = FusedLlama(config).eval().load_transformers(transformers_model)
    ids = torch.randint(VOCABULARY, (BATCH, TOKENS))

    with torch.inference_mode():
        torch.testing.assert_close(fused_model(ids), transformers_model(ids).logits, atol=TOLERANCE, rtol=TOLERANCE)
        for label, system, model in (
            ("llama-hf", "transformers", transformers_model),
            ("llama-fused", "pytorch", fused_model),
        ):
            print(f"{label}: {1e3 * seconds_per_step(model, ids):.1f} ms per step without profiler")
            workload = Workload(
                model="llama (random weights)",
                batch=BATCH,
                input_tokens=BATCH * TOKENS,
                steps=STEPS,
                warmup_steps=WARMUP_STEPS,
                details={
                    "what": "forward pass, logits of all tokens",
                    "layers": LAYERS,
                    "heads": HEADS,
                    "kv_heads": KV_HEADS,
                    "width": WIDTH,
                    "mlp_width": MLP_WIDTH,
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
