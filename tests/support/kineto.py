"""Builds small kineto traces for tests: module calls, operators, launches, kernels, steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BASE_NS = 1_718_000_000_000_000_000


class Trace:
    """A trace under construction. Times are microseconds on one clock; the host runs ahead of the device."""

    def __init__(self, device: str = "Test GPU") -> None:
        self.events: list[dict[str, Any]] = []
        self.device = device
        self.host = 10.0
        self.gpu = 1000.0
        self._id = 0
        self._frames: list[int] = []

    def _add(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}
        )

    @contextmanager
    def span(self, category: str, name: str, **args: Any) -> Iterator[None]:
        """A slice around whatever is added inside."""
        start = self.host
        self.host += 1
        yield
        self.host += 1
        self._add(category, name, start, self.host - start, **args)
        self.host += 1

    def step(self, number: int) -> Any:
        """A profiler step."""
        return self.span("user_annotation", f"ProfilerStep#{number}")

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """A module call, e.g. ``Linear_0``."""
        self._id += 1
        me, parent = self._id, self._frames[-1] if self._frames else None
        self._frames.append(me)
        with self.span("python_function", f"nn.Module: {name}", **{"Python id": me, "Python parent id": parent}):
            yield
        self._frames.pop()

    def op(
        self, name: str, us: float = 10.0, dims: Any = None, kernel: str | None = None, stream: int = 7, n: int = 1
    ) -> None:
        """An operator that launches ``n`` kernels of ``us`` microseconds each."""
        args = {} if dims is None else {"Input Dims": dims}
        with self.span("cpu_op", name, **args):
            for _ in range(n):
                self._id += 1
                self._add("cuda_runtime", "cudaLaunchKernel", self.host, 2, correlation=self._id)
                self.host += 3
                self._device("kernel", kernel or name.replace("::", "_") + "_kernel", us, stream)

    def copy(self, name: str, us: float, n_bytes: int) -> None:
        """An operator that copies between host and device."""
        with self.span("cpu_op", name):
            self._id += 1
            self._add("cuda_runtime", "cudaMemcpyAsync", self.host, 2, correlation=self._id)
            self.host += 3
            self._device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", us, 7, bytes=n_bytes)

    def _device(self, category: str, name: str, us: float, stream: int, **args: Any) -> None:
        self.gpu = max(self.gpu, self.host)
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": self.gpu,
                "dur": us,
                "args": {"device": 0, "stream": stream, "correlation": self._id, **args},
            }
        )
        self.gpu += us + 0.5

    def write(self, path: Path) -> Path:
        """Write the trace and return its path."""
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": self.device}],
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": self.events,
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return path
