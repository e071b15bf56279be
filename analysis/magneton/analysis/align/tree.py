"""The tree of work of one step: module calls and operators that carry device time, in order of execution.

Nodes without device time are left out. Examples: allocations, views, bookkeeping. They differ between versions of a system and
would disturb the alignment. Only leaves carry work. On a CPU the work is the exclusive time of the operators that compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Shape = tuple[tuple[int, ...], ...]


class KernelJoules(NamedTuple):
    """Energy of one device activity, with its bounds, J.

    Attributes:
        energy_j: energy.
        low_j: at least.
        high_j: at most.
        within: which stretches between power samples the activity touches. They are given as two running totals of the energy
            of all devices, J: up to the start of the first stretch, and up to the end of the last. Two activities whose
            ranges overlap share energy. None where upper bounds add up.
    """

    energy_j: float
    low_j: float
    high_j: float
    within: tuple[float, float] | None = None


@dataclass(slots=True)
class Work:
    """Device work of one operator call in one step. Times in ns, sizes in bytes.

    Attributes:
        n_lost: launches whose kernels left no record of their time. If there are any, the times are lower bounds.
        n_measured: device activities whose energy is known.
        energy_j: energy of these activities, J; ``energy_low_j`` and ``energy_high_j`` are its bounds.
        class_ns: time by kernel class.
        stretches: which stretches between power samples the activities touch (see ``KernelJoules.within``). The third number
            is the number of steps that the work is a mean of.
    """

    time_ns: float = 0.0
    share_ns: float = 0.0
    transfer_ns: float = 0.0
    transfer_bytes: float = 0.0
    n_kernels: float = 0.0
    n_transfers: float = 0.0
    n_calls: float = 0.0
    n_lost: float = 0.0
    n_measured: float = 0.0
    energy_j: float = 0.0
    energy_low_j: float = 0.0
    energy_high_j: float = 0.0
    class_ns: dict[str, float] = field(default_factory=dict)
    stretches: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, other: Work) -> None:
        """Add another piece of work."""
        self.time_ns += other.time_ns
        self.share_ns += other.share_ns
        self.transfer_ns += other.transfer_ns
        self.transfer_bytes += other.transfer_bytes
        self.n_kernels += other.n_kernels
        self.n_transfers += other.n_transfers
        self.n_calls += other.n_calls
        self.n_lost += other.n_lost
        self.n_measured += other.n_measured
        self.energy_j += other.energy_j
        self.energy_low_j += other.energy_low_j
        self.energy_high_j += other.energy_high_j
        for name, value in other.class_ns.items():
            self.class_ns[name] = self.class_ns.get(name, 0.0) + value
        self.stretches += other.stretches

    def divided(self, by: float) -> Work:
        """Return the work divided by a number (dividing sums once keeps equal means equal)."""
        return Work(
            self.time_ns / by,
            self.share_ns / by,
            self.transfer_ns / by,
            self.transfer_bytes / by,
            self.n_kernels / by,
            self.n_transfers / by,
            self.n_calls / by,
            self.n_lost / by,
            self.n_measured / by,
            self.energy_j / by,
            self.energy_low_j / by,
            self.energy_high_j / by,
            {name: value / by for name, value in self.class_ns.items()},
            [(start, end, steps * by) for start, end, steps in self.stretches],
        )

    @property
    def device_ns(self) -> float:
        """Kernels and transfers together."""
        return self.time_ns + self.transfer_ns

    @property
    def known_energy_j(self) -> float | None:
        """Energy; None if the energy of a device activity is unknown, or there is no activity."""
        activities = self.n_kernels + self.n_transfers
        whole = activities > 0 and self.n_measured >= activities * (1 - 1e-9) and not self.n_lost
        return self.energy_j if whole else None

    @property
    def most_energy_j(self) -> float:
        """Upper bound of the energy: activities that touch the same stretch of samples share its energy."""
        again, reached, last = 0.0, 0.0, 0.0
        for steps, start, end in sorted((steps, start, end) for start, end, steps in self.stretches):
            if steps != last:
                reached, last = start, steps
            again += max(min(end, reached) - start, 0.0) / steps
            reached = max(reached, end)
        return self.energy_high_j - again

    @property
    def known_time_ns(self) -> float | None:
        """Kernel time; None if only the launches of the kernels are known."""
        return None if self.n_lost and not self.time_ns else self.time_ns


@dataclass(slots=True, eq=False)
class Node:
    """A module call, an operator call, or device work without an operator.

    Attributes:
        kind: ``op``, ``module`` or ``launch`` (``step``, ``graph`` for roots).
        ident: id of the row of ``ops``, ``frames`` or ``launches``, depending on ``kind``.
        module: path of the module that the node belongs to, with instance numbers. Backward work belongs to the module of its
            forward operator.
        backward: the node runs inside an autograd backward pass.
        calls: names of the operators that it calls, views among them, where its shapes are not known.
        detail: name of the kernel, where each kernel of a call is a leaf.
        kernels: number and time (ns) of the kernels of each short name that the call launched in the step of the tree.
        inner: kernels of the graph that the call replays, as a tree of their own.
        members: ids of the calls that a leaf stands for, once steps are averaged.
        per_step: time of the work (row 0) and of transfers (row 1) in every step that was averaged, shape ``(2, steps)``, ns.
        class_steps: time of the work by kernel class in every step, shape ``(steps,)`` each, ns.
    """

    kind: str
    name: str
    ident: int | None
    order: tuple[int, int]
    shapes: Shape | None = None
    module: str | None = None
    children: list[Node] = field(default_factory=list)
    work: Work | None = None
    backward: bool = False
    calls: tuple[str, ...] = ()
    detail: str | None = None
    kernels: dict[str, tuple[int, float]] = field(default_factory=dict)
    inner: Node | None = None
    members: list[int] = field(default_factory=list)
    per_step: npt.NDArray[np.float64] | None = None
    class_steps: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    # Filled by ``freeze``:
    strict: int = -1
    loose: int = -1
    n_items: int = 0
    device_ns: float = 0.0

    @property
    def token(self) -> str:
        """Name of the work: the kernel if each kernel is a leaf, else the operator."""
        return self.detail or self.name

    def leaves(self) -> list[Node]:
        """Return the leaves below (or the node itself), in order."""
        if not self.children:
            return [self]
        found: list[Node] = []
        stack = list(reversed(self.children))
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(reversed(node.children))
            else:
                found.append(node)
        return found


class Interner:
    """Gives equal structures equal small numbers, across the two sides of a diff."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def __call__(self, key: object) -> int:
        """Return the number of ``key``, a new one the first time."""
        return self._numbers.setdefault(key, len(self._numbers))


def freeze(root: Node, intern: Interner) -> None:
    """Sort children by execution order, move own work of inner nodes to a leaf, and number the structures.

    ``strict`` numbers are equal for subtrees with the same names and shapes in the same order, ``loose`` numbers for
    subtrees with the same names.
    """
    order: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        order.append(node)
        if node.children and node.work is not None:
            own = Node(
                node.kind, node.name, node.ident, node.order, node.shapes, node.module, [], node.work, node.backward
            )
            own.calls, own.detail, own.kernels, own.inner = node.calls, node.detail, node.kernels, node.inner
            node.children.append(own)
            node.work = None
        node.children.sort(key=lambda child: child.order)
        stack.extend(node.children)
    for node in reversed(order):
        if node.inner is not None:
            freeze(node.inner, intern)
        local = (node.kind, node.name, node.detail)
        node.strict = intern((local, node.shapes, tuple(c.strict for c in node.children)))
        node.loose = intern((local, tuple(c.loose for c in node.children)))
        if node.children:
            node.n_items = sum(c.n_items for c in node.children)
            node.device_ns = sum(c.device_ns for c in node.children)
        else:
            node.n_items = 1
            node.device_ns = node.work.device_ns if node.work else 0.0
