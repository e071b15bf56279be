"""Models of Transformers against the same in another layout: heads in the batch axis (OPT), tokens first (ALBERT), channels last (Whisper).

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, OPTConfig, OPTForCausalLM, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    causal_bias,
    integers,
    mark_attentions,
    mark_input,
    merge_heads,
    normal,
    parameter,
    prepared,
    seeded,
    split_heads,
)

WIDTH, HEADS, BATCH, TOKENS, VOCABULARY, MELS = 64, 4, 2, 12, 120, 20
HEAD_WIDTH = WIDTH // HEADS


def hf_opt(implementation: str, perturbed: bool) -> OPTForCausalLM:
    """The model as Transformers builds it."""
    config = OPTConfig(
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=3 * WIDTH,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = OPTForCausalLM(config)
    return prepared(model, perturbed)


def opt_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' OPT over a whole sequence."""
    model = hf_opt(f"marked_{implementation}", perturbed)
    decoder = "model.model.decoder"
    labels = {f"{decoder}.embed_tokens": "tokens", f"{decoder}.final_layer_norm": "norm", "model.lm_head": "logits"}
    mark_input(model.model.decoder.layers[0].self_attn_layer_norm, "embedding")
    for i, layer in enumerate(model.model.decoder.layers):
        p = f"{decoder}.layers.{i}"
        labels |= {
            f"{p}.self_attn_layer_norm": f"{i}.norm1",
            f"{p}.self_attn.out_proj": f"{i}.attention",
            f"{p}.final_layer_norm": f"{i}.norm2",
            f"{p}.fc1": f"{i}.up",
            f"{p}.activation_fn": f"{i}.hidden",
            f"{p}.fc2": f"{i}.mlp",
            p: f"{i}.layer",
        }
        mark_input(layer.final_layer_norm, f"{i}.middle")
    mark_attentions(model, {f"model.decoder.layers.{i}.self_attn": f"{i}" for i in range(2)})
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), labels


class FlatOPT(nn.Module):
    """Heads in the batch axis, the mask added inside the product, the scale in the weights of the queries."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = hf_opt("eager", perturbed)
        self.decoder, self.head = model.model.decoder, model.lm_head
        with torch.no_grad():
            for layer in self.decoder.layers:
                layer.self_attn.q_proj.weight.mul_(HEAD_WIDTH**-0.5)
                layer.self_attn.q_proj.bias.mul_(HEAD_WIDTH**-0.5)
        self.register_buffer("mask", causal_bias(TOKENS)[None])

    @staticmethod
    def flat(x: Tensor) -> Tensor:
        """(batch, tokens, width) to (batch * heads, tokens, head width)."""
        return x.view(BATCH, TOKENS, HEADS, HEAD_WIDTH).transpose(1, 2).reshape(BATCH * HEADS, TOKENS, HEAD_WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        d = self.decoder
        x = mark("tokens", d.embed_tokens(tokens))
        x = mark("embedding", x + d.embed_positions.weight[2 : 2 + TOKENS])
        for i, layer in enumerate(d.layers):
            y = mark(f"{i}.norm1", layer.self_attn_layer_norm(x))
            a = layer.self_attn
            products = zip("qkv", (a.q_proj, a.k_proj, a.v_proj), strict=True)
            q, k, v = (mark(f"{i}.{n}", self.flat(product(y))) for n, product in products)
            weights = torch.baddbmm(self.mask, q, k.transpose(1, 2)).softmax(-1)
            context = mark(f"{i}.context", torch.bmm(weights, v)).view(BATCH, HEADS, TOKENS, HEAD_WIDTH)
            x = mark(f"{i}.middle", x + mark(f"{i}.attention", a.out_proj(merge_heads(context))))
            hidden = mark(f"{i}.up", layer.fc1(mark(f"{i}.norm2", layer.final_layer_norm(x)))).clamp(min=0)
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", layer.fc2(mark(f"{i}.hidden", hidden))))
        return mark("logits", self.head(mark("norm", d.final_layer_norm(x))))


def opt_flat(perturbed: bool) -> Case:
    """The OPT written by hand."""
    return FlatOPT(perturbed).eval(), (integers(VOCABULARY, BATCH, TOKENS),), {}


def hf_albert(implementation: str, perturbed: bool) -> AlbertModel:
    """The model as Transformers builds it, without dropout."""
    config = AlbertConfig(
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        embedding_size=32,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=TOKENS,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        pad_token_id=None,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with seeded():
        model = AlbertModel(config, add_pooling_layer=False)
    return prepared(model, perturbed)


def albert_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' ALBERT."""
    model = hf_albert(f"marked_{implementation}", perturbed)
    p = "encoder.albert_layer_groups.0.albert_layers.0"
    labels = {
        "model.embeddings.word_embeddings": "tokens",
        "model.embeddings.LayerNorm": "embedding",
        "model.encoder.embedding_hidden_mapping_in": "mapped",
        f"model.{p}.attention.dense": "attention",
        f"model.{p}.attention.LayerNorm": "middle",
        f"model.{p}.ffn": "up",
        f"model.{p}.activation": "hidden",
        f"model.{p}.ffn_output": "mlp",
        f"model.{p}.full_layer_layer_norm": "layer",
    }
    mark_attentions(model, {f"{p}.attention": "block"})
    return Output(model, "input_ids", field="last_hidden_state"), (integers(VOCABULARY, BATCH, TOKENS),), labels


class TimeFirstAlbert(nn.Module):
    """Activations as (tokens, batch, width) throughout, one shared layer with a joined product."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = hf_albert("eager", perturbed)
        e = model.embeddings
        self.words, self.norm = e.word_embeddings, e.LayerNorm
        self.table = parameter(e.position_embeddings.weight + e.token_type_embeddings.weight[0])
        self.mapped = model.encoder.embedding_hidden_mapping_in
        self.layer = model.encoder.albert_layer_groups[0].albert_layers[0]
        a = self.layer.attention
        self.weight = parameter(torch.cat([a.query.weight, a.key.weight, a.value.weight]))
        self.bias = parameter(torch.cat([a.query.bias, a.key.bias, a.value.bias]))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (batch, tokens) to (batch, tokens, width)."""
        x = mark("tokens", self.words(tokens.T)) + self.table[:, None]
        x = mark("mapped", self.mapped(mark("embedding", self.norm(x))))
        a = self.layer.attention
        for _ in range(3):
            qkv = F.linear(x, self.weight, self.bias).chunk(3, dim=-1)
            q, k, v = (
                mark(f"block.{n}", p.reshape(TOKENS, BATCH * HEADS, HEAD_WIDTH).transpose(0, 1))
                for n, p in zip("qkv", qkv, strict=True)
            )
            weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / HEAD_WIDTH**0.5, dim=-1)
            context = mark("block.context", torch.bmm(weights, v).transpose(0, 1).reshape(TOKENS, BATCH, WIDTH))
            x = mark("middle", a.LayerNorm(x + mark("attention", a.dense(context))))
            hidden = mark("hidden", F.gelu(mark("up", self.layer.ffn(x)), approximate="tanh"))
            x = mark("layer", self.layer.full_layer_layer_norm(x + mark("mlp", self.layer.ffn_output(hidden))))
        return x.transpose(0, 1)


def albert_time_first(perturbed: bool) -> Case:
    """The ALBERT written by hand."""
    return TimeFirstAlbert(perturbed).eval(), (integers(VOCABULARY, BATCH, TOKENS),), {}


def hf_whisper(implementation: str, perturbed: bool) -> WhisperEncoder:
    """The encoder as Transformers builds it."""
    config = WhisperConfig(
        encoder_layers=2,
        encoder_attention_heads=HEADS,
        d_model=WIDTH,
        encoder_ffn_dim=2 * WIDTH,
        num_mel_bins=MELS,
        max_source_positions=TOKENS,
        vocab_size=64,
        attn_implementation=implementation,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    with seeded():
        model = WhisperEncoder(config)
    return prepared(model, perturbed)


def whisper_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' Whisper encoder."""
    model = hf_whisper(f"marked_{implementation}", perturbed)
    labels = {"model.conv1": "conv1", "model.conv2": "conv2", "model.layer_norm": "norm"}
    mark_input(model.layers[0].self_attn_layer_norm, "embedding")
    for i, layer in enumerate(model.layers):
        p = f"model.layers.{i}"
        labels |= {
            f"{p}.self_attn_layer_norm": f"{i}.norm1",
            f"{p}.self_attn.out_proj": f"{i}.attention",
            f"{p}.final_layer_norm": f"{i}.norm2",
            f"{p}.fc1": f"{i}.up",
            f"{p}.activation_fn": f"{i}.hidden",
            f"{p}.fc2": f"{i}.mlp",
            p: f"{i}.layer",
        }
        mark_input(layer.final_layer_norm, f"{i}.middle")
    mark_attentions(model, {f"layers.{i}.self_attn": f"{i}" for i in range(2)})
    return Output(model, "input_features", field="last_hidden_state"), (normal(BATCH, MELS, 2 * TOKENS),), labels


class UnfoldedWhisper(nn.Module):
    """Activations as (batch, time, channels), convolutions as products of unfolded windows, one joined projection."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        self.model = hf_whisper("eager", perturbed)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for layer in self.model.layers:
            a = layer.self_attn
            self.weights.append(parameter(torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])))
            self.biases.append(parameter(torch.cat([a.q_proj.bias, torch.zeros(WIDTH), a.v_proj.bias])))

    @staticmethod
    def convolve(conv: nn.Conv1d, x: Tensor, stride: int) -> Tensor:
        """A convolution of three taps over the second axis of (batch, time, channels)."""
        cut = F.pad(x, (0, 0, 1, 1)).unfold(1, 3, stride)
        return F.linear(cut.flatten(2), conv.weight.flatten(1), conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, bins, time) to (batch, time / 2, width)."""
        base = self.model
        x = F.gelu(mark("conv1", self.convolve(base.conv1, x.transpose(1, 2), 1)))
        x = mark("embedding", F.gelu(mark("conv2", self.convolve(base.conv2, x, 2))) + base.embed_positions.weight)
        for i, layer in enumerate(base.layers):
            y = mark(f"{i}.norm1", layer.self_attn_layer_norm(x))
            q, k, v = (split_heads(p, HEADS) for p in F.linear(y, self.weights[i], self.biases[i]).chunk(3, -1))
            q, k, v = mark(f"{i}.q", q * HEAD_WIDTH**-0.5), mark(f"{i}.k", k), mark(f"{i}.v", v)
            context = mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v, scale=1.0))
            x = mark(f"{i}.middle", x + mark(f"{i}.attention", layer.self_attn.out_proj(merge_heads(context))))
            up = mark(f"{i}.up", layer.fc1(mark(f"{i}.norm2", layer.final_layer_norm(x))))
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", layer.fc2(mark(f"{i}.hidden", F.gelu(up)))))
        return mark("norm", base.layer_norm(x))


def whisper_unfolded(perturbed: bool) -> Case:
    """The Whisper encoder written by hand."""
    return UnfoldedWhisper(perturbed).eval(), (normal(BATCH, MELS, 2 * TOKENS),), {}


PAIRS = (
    both("opt/eager-flat", partial(opt_hf, "eager"), opt_flat)
    | both("albert/sdpa-time_first", partial(albert_hf, "sdpa"), albert_time_first)
    | both("whisper/eager-unfold", partial(whisper_hf, "eager"), whisper_unfolded)
)
