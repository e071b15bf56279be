"""Pairs of programs that compute the same in different ways, with the boundaries they share, one family per file.

``PAIRS`` maps a name to ``(factory_a, factory_b)``; see `benchmarks.pairs.building`. Labels and marks were written down
before a matcher ran on them and follow from how the programs are built.
"""

from __future__ import annotations

from benchmarks.pairs import bert, controls, gpt2, graphs, llama, moe, norms, precision, resnet, t5, training, unet, vit
from benchmarks.pairs.building import Pair

FAMILIES = (gpt2, llama, bert, t5, vit, resnet, unet, moe, norms, graphs, training, precision, controls)

PAIRS: dict[str, Pair] = {}
for family in FAMILIES:
    assert not PAIRS.keys() & family.PAIRS.keys()
    PAIRS |= family.PAIRS
