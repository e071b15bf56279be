"""Names of operators and kernels without what is another in every run, and short enough to read."""

from __future__ import annotations

import re
from functools import lru_cache

_ADDRESS = re.compile(r"(?<![0-9a-zA-Z])0[xX][0-9a-fA-F]{4,}")
# Hashes of generated code: 51 letters of base 32 after a c (Inductor's kernels) or an f (its graphs), or eight and more hexadecimal digits of which
# one is a letter and one is not (graphs, engines). Names of number formats that follow one another look alike and are none.
_HASH = re.compile(
    r"(?<![0-9a-zA-Z])(?!(?:e4m3|e5m2|bf16|f8|f16|f32|f64){2,}(?![0-9a-zA-Z]))"
    r"(?:[cf][a-z2-7]{50,52}|f?(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,})(?![0-9a-zA-Z])"
)


def stable_name(name: str) -> str:
    """Return a name without what is another in every run: addresses of objects, hashes of generated code.

    Example: ``triton_poi_fused_add_0_c3af...`` of two runs is one kernel, ``<function f at 0x7f...>`` one function.
    """
    if "0x" in name or "0X" in name:
        name = _ADDRESS.sub("0x...", name)
    return _HASH.sub("#", name) if len(name) >= 8 else name


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
