"""Short names of kernels."""

from __future__ import annotations

from functools import lru_cache

from magneton.analysis.align.tree import stable_name


@lru_cache(maxsize=65536)
def short_kernel_name(name: str | None) -> str:
    """Return a kernel name without return type, template arguments and parameters: ``ns::kernel``.

    A Tensile or other generated name (no template arguments) keeps its first 40 characters.
    """
    text = stable_name(name or "").removeprefix("void ")
    depth = 0
    kept: list[str] = []
    for char in text:
        if char in "<(":
            if char == "(" and depth == 0 and not text.startswith("(anonymous", len("".join(kept))):
                break
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(char)
    short = "".join(kept).replace("::::", "::").strip(": ")
    return (short or text)[:60]
