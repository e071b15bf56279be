"""Stages that measure programs: pairs that compute the same in two ways, graphs, one operation replayed and in place, JAX."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.gpu.lab import Lab, compare, gpu_series, mean_sd, watts
from magneton.collectors.replay.torch import RepeatWindow, repeat_in_place, replay

Sides = dict[str, Callable[[], Any]]


def gpt2(lab: Lab, sizes: tuple[int, int, int, int, int, int], *, fused: bool) -> tuple[Any, torch.Tensor]:
    """Return GPT-2 of random weights (the same for both) and tokens: eager attention and unfused GELU, or both fused."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width, vocabulary, tokens, batch = sizes
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        vocab_size=vocabulary,
        n_positions=tokens,
        activation_function="gelu_pytorch_tanh" if fused else "gelu_new",
        attn_implementation="sdpa" if fused else "eager",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval().to(lab.device)
    return model, torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(1)).to(lab.device)


def _forward(model: Any, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        with torch.inference_mode():
            return model(ids).logits

    return step


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative L2 distance."""
    one, other = a.double(), b.double()
    return float((one - other).norm() / one.norm())


def gpt2_pair(lab: Lab) -> dict[str, Any]:
    """GPT-2, eager against fused."""
    sides: Sides = {side: _forward(*gpt2(lab, lab.plan.gpt2, fused=side == "fused")) for side in ("eager", "fused")}
    return {"output_l2": _relative(sides["eager"](), sides["fused"]())} | compare(lab, "gpt2", sides)


def tf32_pair(lab: Lab) -> dict[str, Any]:
    """A float32 product with TF32 off against on."""
    a = torch.randn(lab.plan.matrix, lab.plan.matrix, device=lab.device)
    b = torch.randn_like(a)

    def with_tf32(allowed: bool) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            torch.backends.cuda.matmul.allow_tf32 = allowed
            return a @ b

        return step

    sides: Sides = {"off": with_tf32(False), "on": with_tf32(True)}
    try:
        return {"output_l2": _relative(sides["off"](), sides["on"]())} | compare(lab, "tf32", sides)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def addmm_pair(lab: Lab) -> dict[str, Any]:
    """``mm`` and ``add`` against ``addmm``."""
    n = lab.plan.matrix // 2
    bias, x, w = (torch.randn(*s, device=lab.device) for s in ((n,), (n, n), (n, n)))
    sides: Sides = {"mm+add": lambda: torch.mm(x, w) + bias, "addmm": lambda: torch.addmm(bias, x, w)}
    return {"output_l2": _relative(sides["mm+add"](), sides["addmm"]())} | compare(lab, "addmm", sides)


def layer_norm_pairs(lab: Lab) -> dict[str, Any]:
    """Layer norm of a transposed input against a contiguous one, and written out against fused."""
    rows, width = lab.plan.matrix * 4, 1024 if lab.device.type == "cuda" else 64
    x = torch.randn(width, rows, device=lab.device).t()
    dense = x.contiguous()
    weight, bias = torch.randn(width, device=lab.device), torch.randn(width, device=lab.device)

    def written_out() -> torch.Tensor:
        mean = dense.mean(-1, keepdim=True)
        centred = dense - mean
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * weight + bias

    def fused() -> torch.Tensor:
        return F.layer_norm(dense, (width,), weight, bias)

    def strided() -> torch.Tensor:
        return F.layer_norm(x, (width,), weight, bias)

    return {
        "output_l2": {"written out": _relative(fused(), written_out()), "transposed": _relative(fused(), strided())},
        "layout": compare(lab, "layer-norm-layout", {"transposed": strided, "contiguous": fused}),
        "fusion": compare(lab, "layer-norm-fusion", {"written out": written_out, "fused": fused}),
    }


def graphs(lab: Lab) -> dict[str, Any]:
    """A small GPT-2 launched kernel by kernel against its CUDA graph."""
    if lab.device.type != "cuda":
        raise RuntimeError("CUDA graphs need a GPU")
    model, ids = gpt2(lab, lab.plan.small_gpt2, fused=True)
    step = _forward(model, ids)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    graph.replay()
    lab.synchronize()
    return {"output_l2": _relative(step(), output)} | compare(lab, "graphs", {"launches": step, "graph": graph.replay})


def replays(lab: Lab) -> dict[str, Any]:
    """Energy of one call of ``arange``, ``contiguous`` and ``linear``: replayed alone, against in place in a program."""
    n, device = lab.plan.matrix, lab.device
    tall = torch.randn(n, n, device=device).t()
    # Of a size that takes about as long as the other two.
    m = n // 4
    x, w, bias = (torch.randn(*shape, device=device) for shape in ((m, m), (m, m), (m,)))
    names = {"arange": "aten::arange", "contiguous": "aten::clone", "linear": "aten::addmm"}
    calls: dict[str, Callable[[], Any]] = {
        "arange": lambda: torch.arange(lab.plan.numel, device=device),
        "contiguous": tall.contiguous,
        "linear": lambda: F.linear(x, w, bias),
    }
    arguments: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "arange": (lambda: torch.arange(lab.plan.numel, device=device), ()),
        "contiguous": (lambda t: t.contiguous(), (tall,)),
        "linear": (F.linear, (x, w, bias)),
    }

    def program() -> None:
        with torch.no_grad():
            for call in calls.values():
                call()

    return {name: _one_replay(lab, name, names[name], program, *arguments[name]) for name in calls}


def _one_replay(
    lab: Lab, name: str, operator: str, program: Callable[[], None], function: Callable[..., Any], args: tuple[Any, ...]
) -> dict[str, Any]:
    seconds, times = lab.plan.window_s, 10
    with lab.sampling(f"replay-{name}") as sampled:
        alone = replay(function, args, seconds=seconds, rounds=2)
        warm = lab.burn(program, seconds / 5)
        # A window with the operation run once has to be long enough for the sensor too.
        iterations = max(math.ceil(0.6 * seconds / (warm.duration_s / warm.calls)), 2)
        placed = repeat_in_place(
            program,
            lambda found, _: found.startswith(operator),
            times=times,
            iterations=min(iterations, 50_000),
            rounds=2,
            device=lab.device,
        )
    result: dict[str, Any] = {
        "copies": alone.copies,
        "cold": [alone.cold, placed.cold],
        "repeated": placed.repeated,
        "windows_s": [w.duration_s for w in (*alone.windows, *placed.windows)],
    }
    for field, series in gpu_series(sampled).items():

        def energy(window: RepeatWindow, one: Any = series) -> float | None:
            power = watts(one, window.start_ns, window.end_ns)
            return None if power is None else power * window.duration_s / window.calls

        by_times = {r: [energy(w) for w in placed.windows if w.times == r] for r in (times, 1)}
        often, once = (mean_sd(by_times[r])["mean"] for r in (times, 1))
        replayed = mean_sd([energy(w) for w in alone.windows])["mean"]
        in_place = None if often is None or once is None else (often - once) / (times - 1)
        error = None if not in_place or replayed is None else replayed / in_place - 1
        result[field] = {"replayed_j": replayed, "in_place_j": in_place, "replay_error": error}
    return result


def jax_product(lab: Lab) -> dict[str, Any]:
    """The same product through JAX and through torch, float32."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError as error:
        raise RuntimeError("jax is not installed") from error
    n = lab.plan.matrix
    key = jax.random.key(0)
    a, b = jax.random.normal(key, (n, n)), jax.random.normal(key, (n, n))
    product = jax.jit(lambda x, y: x @ y)
    x, y = torch.randn(n, n, device=lab.device), torch.randn(n, n, device=lab.device)
    return {
        "platform": jax.default_backend(),
        **compare(lab, "jax", {"torch": lambda: x @ y, "jax": lambda: product(a, b).block_until_ready()}),
    }


def repeatability(lab: Lab) -> dict[str, Any]:
    """The same program against itself: what a difference of zero looks like."""
    a = torch.randn(lab.plan.matrix, lab.plan.matrix, device=lab.device)
    found = compare(lab, "self", {"first": lambda: a @ a, "second": lambda: a @ a})
    runs = [w.calls / w.duration_s for name, _, ws in lab.kept["windows"] if name == "self" for w in ws]
    return found | {"iterations_per_s_sd": statistics.stdev(runs) / statistics.mean(runs)}
