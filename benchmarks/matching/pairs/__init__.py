"""Pairs of programs that compute the same in different ways, with the boundaries they share, one family per file.

``PAIRS`` maps a name to ``(factory_a, factory_b)``; see `benchmarks.matching.pairs.building`. Labels and marks follow from how
the programs are built and were written down before a matcher ran on them; only `small` guards what once failed.
"""

from __future__ import annotations

from benchmarks.matching.pairs import (
    attention,
    bert,
    chunks,
    controls,
    convolution,
    decoders,
    dit,
    folding,
    gathers,
    gpt2,
    graphs,
    layouts,
    llama,
    microbatches,
    moe,
    norms,
    parallel_decoders,
    precision,
    resnet,
    sequences,
    small,
    t5,
    training,
    unet,
    vit,
)
from benchmarks.matching.pairs.building import Pair

FAMILIES = (
    gpt2,
    llama,
    decoders,
    parallel_decoders,
    bert,
    t5,
    layouts,
    vit,
    dit,
    resnet,
    convolution,
    unet,
    moe,
    norms,
    attention,
    folding,
    sequences,
    gathers,
    graphs,
    training,
    microbatches,
    chunks,
    small,
    precision,
    controls,
)

PAIRS: dict[str, Pair] = {}
for family in FAMILIES:
    assert not PAIRS.keys() & family.PAIRS.keys()
    PAIRS |= family.PAIRS
