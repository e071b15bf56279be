"""The curve of `benchmarks.match_scale` as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return the curve as an SVG picture: seconds to match over operators of both sides, both logarithmic."""
    width, height, left, bottom = 640, 420, 60, 50
    low, high, fast, slow = 3.0, 5.6, -2.0, 1.5

    def at(operators: float, seconds: float) -> tuple[float, float]:
        x = left + (np.log10(operators) - low) / (high - low) * (width - left - 20)
        y = height - bottom - (np.log10(seconds) - fast) / (slow - fast) * (height - bottom - 20)
        return round(float(x), 1), round(float(y), 1)

    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for power in (3, 4, 5):
        x, y = at(10**power, 10**fast)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{10**power:,}</text>')
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="20" stroke="#ddd"/>')
    for power in (-2, -1, 0, 1):
        x, y = at(10**low, 10**power)
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{10.0**power:g} s</text>')
        parts.append(f'<line x1="{x}" y1="{y}" x2="{width - 20}" y2="{y}" stroke="#ddd"/>')
    for number, (close, colour, name) in enumerate(
        ((False, "#1f77b4", "float32"), (True, "#d62728", "bfloat16, close"))
    ):
        chosen = [r for r in rows if ("close" in r["case"]) == close]
        points = sorted(at(r["ops_a"] + r["ops_b"], r["match_seconds"]) for r in chosen)
        line = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="{left + 20}" y="{40 + 18 * number}" fill="{colour}">{name}</text>')
    start, end = at(2e3, 0.05), at(2e5, 5.0)
    parts.append(
        f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="#888" stroke-dasharray="4 4"/>'
    )
    parts.append(f'<text x="{left + 20}" y="76" fill="#888">25 us per operator</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">operators of both sides</text>')
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    return f"{head}\n{body}\n</svg>\n"
