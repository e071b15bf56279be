"""What devices draw: one table of boards and one of kernel classes, each row with its source, written before any case.

``true power of a class = idle + share * (limit - idle)``. In each simulated run ``share`` is drawn once for each kernel class, from the range
of its row. So all kernels of a class draw the same power, and two classes of one row draw different powers. Sources are of three kinds:
``vendor`` (data sheet), ``paper`` and ``measured`` (external meter, ``traces/power``). A row that follows from other rows says
``derived`` and how. The ranges are wide, because a source speaks of a kind of work, for example large matrix products, and not of one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Board:
    """One board: power at rest with a context open, and its power limit, W."""

    name: str
    idle_w: float
    limit_w: float
    idle_source: str
    limit_source: str


@dataclass(frozen=True)
class ClassPower:
    """Where the power of a class of kernels lies between idle (0) and the limit (1)."""

    kernel_class: str
    low: float
    high: float
    source: str


BOARDS: dict[str, Board] = {
    b.name: b
    for b in (
        Board(
            "V100",
            77.0,
            300.0,
            "derived: the idle share measured on A100-PCIe (64 of 250 W)",
            "vendor: NVIDIA V100 data sheet, SXM2",
        ),
        Board(
            "A100",
            64.0,
            250.0,
            "measured: a100_step, meter, before and after the load",
            "vendor: NVIDIA A100 40GB PCIe data sheet",
        ),
        Board(
            "H100",
            179.0,
            700.0,
            "derived: the idle share measured on A100-PCIe (64 of 250 W)",
            "vendor: NVIDIA H100 data sheet, SXM5",
        ),
        Board(
            "RTX3090",
            134.0,
            438.0,
            "measured: rtx3090_step, meter, before the load",
            "measured: rtx3090_step, meter, full load (the vendor's limit of 350 W is of the sensor's scale)",
        ),
        Board(
            "RTX4090",
            70.0,
            450.0,
            "measured: rtx4090_step, meter, before the load",
            "vendor: NVIDIA GeForce RTX 4090, total graphics power",
        ),
    )
}

_COMPUTE = (
    "paper: POLCA (ASPLOS 2024): compute-bound prompt phases reach the limit; measured: A100 step 200 of 250 W (0.73)"
)
_MEMORY = (
    "paper: arXiv 2605.11999: bandwidth-bound decode draws 137-300 W of 700 W; above the idle of this table up to 0.4"
)
_MIXED = "derived: between the compute-bound and the bandwidth-bound row"
_WAIT = (
    "paper: arXiv 2508.14318: communication draws much less than computation (no figure): below the bandwidth-bound row"
)

CLASS_POWERS: dict[str, ClassPower] = {
    row.kernel_class: row
    for row in (
        ClassPower("gemm", 0.60, 1.00, _COMPUTE),
        ClassPower("convolution", 0.60, 1.00, _COMPUTE),
        ClassPower("attention", 0.35, 0.90, _MIXED),
        ClassPower("moe", 0.35, 0.90, _MIXED),
        ClassPower("normalization", 0.15, 0.45, _MEMORY),
        ClassPower("softmax", 0.15, 0.45, _MEMORY),
        ClassPower("elementwise", 0.15, 0.45, _MEMORY),
        ClassPower("reduction", 0.15, 0.45, _MEMORY),
        ClassPower("copy", 0.15, 0.45, _MEMORY),
        ClassPower("embedding", 0.15, 0.45, _MEMORY),
        ClassPower("optimizer", 0.15, 0.45, _MEMORY),
        ClassPower("sort", 0.10, 0.40, _MEMORY),
        ClassPower("rng", 0.10, 0.45, _MEMORY),
        ClassPower("memset", 0.10, 0.40, _MEMORY),
        ClassPower("memcpy", 0.03, 0.20, _WAIT),
        ClassPower("collective", 0.03, 0.20, _WAIT),
        ClassPower("other", 0.10, 0.90, "derived: anything between the rows above"),
    )
}


def dynamic_powers(classes: list[str], board: Board, rng: np.random.Generator) -> np.ndarray:
    """Return the power above idle, W, of each class for one run, drawn from the table.

    Args:
        classes: kernel classes (of ``magneton.transforms.naming.kernel_classes``); a suffix after ``:`` tells kernels of one
            class apart, and each then draws its own power.
        board: board it runs on.
        rng: source of the draw.
    """
    rows = [CLASS_POWERS.get(name.split(":", 1)[0], CLASS_POWERS["other"]) for name in classes]
    shares = rng.uniform([r.low for r in rows], [r.high for r in rows])
    return np.asarray(shares * (board.limit_w - board.idle_w), dtype=np.float64)
