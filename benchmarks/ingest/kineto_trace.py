"""Makes kineto traces of any size, the same every time, laid out as kineto lays them out.

A training loop of a transformer: module calls and Python frames (about 85 % of the events, as in real traces with
stacks), operators with their shapes, launches, kernels, flow arrows, steps.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from pathlib import Path

BASE_NS = 1_767_189_312_000_000_000
PID = 4242
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "Synthetic GPU", "totalGlobalMem": 85899345920, "numSms": 132
    }
  ],
  "record_shapes": 1,
  "with_stack": 1,
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %d,
  "traceEvents": [
"""
_EVENT = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,
    "ts": %s, "dur": %s%s
  }"""
_FLOW = """  {
    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %s,
    "cat": "ac2g", "name": "ac2g"%s
  }"""
_OPS = {
    "aten::mm": ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 3),
    "aten::add": ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >", 1),
    "aten::mul": ("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float> >", 1),
    "aten::native_layer_norm": ("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>", 1),
    "aten::_flash_attention_forward": (
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128> >",
        1,
    ),
    "aten::copy_": ("Memcpy DtoD (Device -> Device)", 1),
}
_FILES = [f"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/part{i}.py" for i in range(60)]
_MODULES = ("Attention", "MLP", "LayerNorm", "Linear", "Dropout")


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


class _Writer:
    """Writes one event after another and keeps the clocks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  (reproducible input, not a secret)
        self.now = 6_520_618_853_487_683
        self.device = self.now
        self.python = self.external = self.correlation = 0
        self.host: list[str] = []
        self.frames: list[str] = []
        self.device_side: list[str] = []

    def slice(
        self, category: str, name: str, start: int, end: int, args: str, track: tuple[int, int] = (PID, PID)
    ) -> None:
        text = f',\n    "args": {{\n      {args}\n    }}' if args else ""
        where = {"cpu_op": self.host, "user_annotation": self.host, "python_function": self.frames}
        where.get(category, self.device_side).append(
            _EVENT % (category, name, *track, _us(start), _us(end - start), text)
        )

    def tick(self, low: int = 200, high: int = 3000) -> int:
        self.now += self.random.randrange(low, high)
        return self.now

    def frame(self, name: str, parent: int, depth: int) -> None:
        """A Python call with calls and perhaps an operator inside."""
        self.python += 1
        me, start = self.python, self.tick()
        for _ in range(self.random.choice((0, 1, 1, 2, 3)) if depth < 9 else 0):
            line = self.random.randrange(1, 40)
            file = self.random.choice(_FILES)
            self.frame(f"{file}({line * 25}): call_{line}", me, depth + 1)
        if self.random.random() < 0.07:
            self.operator()
        end = self.tick()
        self.slice(
            "python_function", name, start, end, f'"Python parent id": {parent}, "Python id": {me}, "Ev Idx": {me}'
        )

    def operator(self) -> None:
        """An operator that calls another one, which launches a kernel."""
        name = self.random.choice(list(_OPS))
        kernel, weight = _OPS[name]
        outer = self.tick()
        self.external += 2
        external = self.external
        size = self.random.choice((64, 128, 256))
        shapes = (
            f'"External id": {external}, "Record function id": {external}, "Concrete Inputs": ["", "", "1"], '
            f'"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], "Input Strides": [[{size}, 1], [{size}, 1], []], '
            f'"Input Dims": [[{size}, {size}], [{size}, {size}], []], "Ev Idx": {external}'
        )
        inner = self.tick()
        launch = self.tick()
        self.correlation += 1
        correlation = self.correlation
        self.slice(
            "cuda_runtime",
            "cudaLaunchKernel",
            launch,
            self.tick(2000, 6000),
            f'"External id": {external + 1}, "cbid": 211, "correlation": {correlation}',
        )
        self.device = max(self.device, launch + 4000) + 500
        start, self.device = self.device, self.device + weight * self.random.randrange(2000, 20_000)
        args = (
            f'"External id": {external + 1}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {correlation}, '
            '"registers per thread": 64, "shared memory": 16384, "blocks per SM": 1.939394, "warps per SM": 15.515152, '
            f'"grid": [{size}, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 43'
        )
        category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
        self.slice(category, kernel, start, self.device, args, (0, 7))
        self.device_side.append(_FLOW % ("s", correlation, PID, PID, _us(launch), ""))
        self.device_side.append(_FLOW % ("f", correlation, 0, 7, _us(start), ', "bp": "e"'))
        self.slice(
            "cpu_op",
            name,
            inner,
            self.tick(),
            shapes.replace(f'"External id": {external}', f'"External id": {external + 1}'),
        )
        self.slice("cpu_op", f"{name}_wrapper", outer, self.tick(), shapes)

    def step(self, number: int) -> None:
        """One iteration over 24 layers."""
        start = self.tick()
        self.python += 1
        loop, begun = self.python, self.tick()
        for layer in range(24):
            self.python += 1
            block, t0 = self.python, self.tick()
            for part in _MODULES:
                self.frame(f"nn.Module: {part}_{layer}", block, 0)
            self.slice(
                "python_function",
                f"nn.Module: Block_{layer}",
                t0,
                self.tick(),
                f'"Python parent id": {loop}, "Python id": {block}, "Ev Idx": {block}',
            )
        self.slice(
            "python_function",
            "train.py(10): step",
            begun,
            self.tick(),
            f'"Python parent id": null, "Python id": {loop}, "Ev Idx": {loop}',
        )
        self.external += 1
        self.slice(
            "user_annotation",
            f"ProfilerStep#{number}",
            start,
            self.tick(),
            f'"External id": {self.external}, "Ev Idx": {self.external}',
        )


def write(path: Path, events: int, seed: int = 1) -> int:
    """Write a trace of at least ``events`` events and return how many it has.

    As in kineto's own files operators come first, then all Python frames, then launches, arrows and device activities.
    """
    writer = _Writer(seed)
    count = step = 0
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(tempfile.TemporaryFile("w+", dir=path.parent)) for _ in range(3)]
        while count < events:
            writer.step(step)
            step += 1
            for part, texts in zip(parts, (writer.host, writer.frames, writer.device_side), strict=True):
                part.write("".join(f"{text},\n" for text in texts))
                count += len(texts)
                texts.clear()
        out = stack.enter_context(path.open("w"))
        out.write(_HEAD % BASE_NS)
        for part in parts:
            part.seek(0)
            shutil.copyfileobj(part, out, 1 << 20)
        out.write('  {\n    "ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "",\n')
        out.write(f'    "ts": {_us(writer.now)}\n  }}\n  ],\n  "traceName": "synthetic.json"\n}}\n')
    return count + 1
