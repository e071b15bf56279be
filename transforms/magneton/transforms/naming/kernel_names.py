"""Whether two names mean the same kernel.

A launch and its activity are named by different parts of the software. One name may be mangled and the other not; one may lack
template arguments, or be cut at a fixed length. After these differences are undone, the names must be equal. So two kernels of one
template with different arguments never agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magneton.schemas.kinds import Activity

MEMCPY = "<memcpy>"
MEMSET = "<memset>"
UNNAMED = "<kernel>"
_KINDS = (MEMCPY, MEMSET, UNNAMED)

EXACT = 4
CUT = 3
BARE = 2

# Names shorter than this that happen to begin another are not taken for cut ones.
_MIN_CUT = 32
_RETURN_TYPE = re.compile(r"^(?:void|static|__global__)\s+")
_SUFFIX = re.compile(r"(?:\.kd|\s*\[clone [^\]]*\])+$")
_DIGITS = re.compile(r"\d+")
_COPY = re.compile(r"(?:hip|cuda|cu)(?:Graph\w*)?Memcpy")
_SET = re.compile(r"(?:hip|cuda|cu)(?:Graph\w*)?Memset")
# ROCm runs copies and fills inside a graph as kernels of its runtime.
_RUNTIME_KERNELS = (("__amd_rocclr_copyBuffer", MEMCPY), ("__amd_rocclr_fillBuffer", MEMSET))


def launch_token(api: str, kernel_name: str | None) -> str:
    """Return what a launch call names: its kernel, or ``MEMCPY``, ``MEMSET``, ``UNNAMED`` (CUDA names no kernel)."""
    if kernel_name:
        return kernel_name
    if _COPY.match(api):
        return MEMCPY
    return MEMSET if _SET.match(api) else UNNAMED


def activity_token(category: str, name: str) -> str:
    """Return what a device activity is, in the terms of ``launch_token``."""
    if category == Activity.MEMCPY:
        return MEMCPY
    if category == Activity.MEMSET:
        return MEMSET
    return next((token for start, token in _RUNTIME_KERNELS if name.startswith(start)), name)


def plain(name: str) -> str:
    """Return the name without return type, symbol suffix and surplus blanks."""
    return _SUFFIX.sub("", _RETURN_TYPE.sub("", " ".join(name.split())))


def family(name: str) -> str:
    """Return the name with every number replaced, so that tile sizes and ranks of one kernel fall together."""
    return _DIGITS.sub("#", plain(name))


def bare(name: str) -> str:
    """Return the qualified function name: no template arguments, no parameters, demangled as far as that needs."""
    name = plain(name)
    if name.startswith("_Z"):
        return _mangled_path(name) or name
    name = _anonymous(name)
    depth = 0
    kept: list[str] = []
    for char in name:
        if char == "(" and depth == 0:
            break
        depth += (char == "<") - (char == ">")
        if depth == 0 and char != ">":
            kept.append(char)
    return "".join(kept).strip()


def _mangled_path(name: str) -> str | None:
    """Return ``a::b::f`` of an Itanium-mangled name, reading only its leading source names."""
    at = 2
    nested = name.startswith("N", at)
    at += nested
    parts: list[str] = []
    while (match := _DIGITS.match(name, at)) is not None:
        end = match.end() + int(match.group())
        if end > len(name):
            return None
        part = name[match.end() : end]
        parts.append("{anonymous}" if part.startswith("_GLOBAL__N_") else part)
        at = end
        if not nested:
            break
    return "::".join(parts) if parts else None


def agreement(a: Sequence[str], b: Sequence[str]) -> NDArray[np.int8]:
    """Return how well each of the names ``a`` agrees with each of ``b``.

    A name that stands on both sides agrees with itself only; the weaker kinds are for spellings that one side lacks.

    Returns:
        Array of shape ``(len(a), len(b))``: ``EXACT``, ``CUT`` (one is the other's beginning, as long as its side's
        names ever get), ``BARE`` (one gives only the function, which is the other's), or 0.
    """
    table = np.zeros((len(a), len(b)), dtype=np.int8)
    plain_a, plain_b = [plain(name) for name in a], [plain(name) for name in b]
    both = set(plain_a) & set(plain_b)
    exact = _positions(plain_b)
    for i, name in enumerate(plain_a):
        table[i, exact.get(name, [])] = EXACT
    rest_a = [i for i, name in enumerate(plain_a) if name not in both and a[i] not in _KINDS]
    rest_b = [j for j, name in enumerate(plain_b) if name not in both and b[j] not in _KINDS]
    by_core = _positions([bare(b[j]) for j in rest_b])
    limit_a, limit_b = max(map(len, a), default=0), max(map(len, b), default=0)
    for i in rest_a:
        core = bare(a[i])
        for j in (rest_b[k] for k in by_core.get(core, ())):
            if _says_only(plain_a[i], plain_b[j], core):
                table[i, j] = BARE
        for j in rest_b:
            cut_a = len(a[i]) == limit_a and b[j].startswith(a[i])
            cut_b = len(b[j]) == limit_b and a[i].startswith(b[j])
            if min(len(a[i]), len(b[j])) >= _MIN_CUT and (cut_a or cut_b):
                table[i, j] = CUT
    return table


def _positions(names: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        found.setdefault(name, []).append(j)
    return found


def _says_only(a: str, b: str, core: str) -> bool:
    """Tell whether the arguments of two names of one function cannot be compared, because one does not spell them."""
    mangled_a, mangled_b = a.startswith("_Z"), b.startswith("_Z")
    if mangled_a or mangled_b:
        return mangled_a != mangled_b
    return core in (bare_form := (_anonymous(a), _anonymous(b))) and bare_form[0] != bare_form[1]


def _anonymous(name: str) -> str:
    return name.replace("(anonymous namespace)", "{anonymous}")
