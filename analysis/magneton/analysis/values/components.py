"""Connected components of large graphs, computed on arrays of edges.

networkx keeps a dictionary entry per node and edge. At 100,000 operators a side that costs seconds.
"""

from __future__ import annotations

import numpy as np

from magneton.analysis.values.columns import Ints


def components(n: int, left: Ints, right: Ints) -> Ints:
    """Return for each node the lowest node that it is connected with.

    Args:
        n: number of nodes.
        left: one end of each edge.
        right: its other end.
    """
    label = np.arange(n)
    while True:
        one, other = label[left], label[right]
        apart = one != other
        if not apart.any():
            return label
        # Every label is the lowest node of its tree: the higher of two trees is hung below the lower.
        left, right = left[apart], right[apart]
        np.minimum.at(label, np.maximum(one, other)[apart], np.minimum(one, other)[apart])
        while True:
            above = label[label]
            if (above == label).all():
                break
            label = above
