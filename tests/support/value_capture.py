"""Reading a capture of values in tests: operators with what they read and define, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Op:
    """One call."""

    op_id: int
    name: str
    reads: list[int]
    writes: list[int]
    flags: set[str]
    row: dict[str, Any] = field(repr=False)


class Seen:
    """The rows of a capture, as the tests ask for them."""

    def __init__(self, capture: Any) -> None:
        self.capture = capture
        self.tensors = {row["tensor_id"]: row for row in capture.tensors.to_pylist()}
        self.modules = {row["module_id"]: row["path"] for row in capture.modules.to_pylist()}
        self.frames = {row["frame_id"]: row for row in capture.frames.to_pylist()}
        edges: dict[int, tuple[list[int], list[int]]] = {}
        for use in sorted(capture.uses.to_pylist(), key=lambda u: (u["position"], u["element"] or 0)):
            edges.setdefault(use["op_id"], ([], []))[use["direction"] == "output"].append(use["tensor_id"])
        self.ops = [
            Op(
                row["op_id"],
                row["name"].partition("::")[2],
                *edges.get(row["op_id"], ([], [])),
                set((row["flags"] or "").split()),
                row,
            )
            for row in capture.ops.to_pylist()
        ]

    @property
    def names(self) -> list[str]:
        return [op.name for op in self.ops]

    def all(self, name: str) -> list[Op]:
        return [op for op in self.ops if op.name == name]

    def one(self, name: str) -> Op:
        (op,) = self.all(name)
        return op

    def keys(self, tensor: int) -> list[str]:
        return [s["key"] for s in self.tensors[tensor]["sketches"] or ()]


def randn(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers of their own seed."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(fn: Any, *inputs: Any, **options: Any) -> Seen:
    """Record the values of a call."""
    from magneton.collectors.torch.values_capture import record_values

    return Seen(record_values(fn, inputs, **options))
