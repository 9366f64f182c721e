"""METIS's part in it: a first partition of the graph, which knows one balance and no host.

METIS is handed whole numbers: what the keys of an operator weigh together is the same for every
operator, so that one balance stands for all as far as it can. The bindings have one constraint
only, no fixed vertices and no idea of hosts; the rest is the matter of `partition.py`.
"""

from __future__ import annotations

import numpy as np

from braided.control.locality.graph import KeyGraph, Numbers
from braided.control.routing.table import Loads

__all__ = ["cut_graph"]

_VERTEX_SCALE = 1_000_000
_EDGE_SCALE = 1_000_000
_LEAST_SHARE = 1e-3
"""METIS can't make a part of nothing."""


def cut_graph(graph: KeyGraph, shares: Loads, alpha: float, seed: int) -> Numbers:
    """The part of each key; part p is to have about `shares[p]` of all weight."""
    parts = shares.size
    if parts == 1 or graph.keys == 0:
        return np.zeros(graph.keys, dtype=np.int64)
    shares = np.maximum(shares, _LEAST_SHARE)
    shares = shares / shares.sum()
    # Imported where it is used: most queries cut no graph.
    import pymetis

    starts, adjacent, weights = _adjacency(graph)
    options = pymetis.Options(seed=seed, ufactor=max(1, round((alpha - 1) * 1000)), ncuts=2)
    cut = pymetis.part_graph(
        parts,
        adjacency=pymetis.CSRAdjacency(starts, adjacent),
        vweights=_vertex_weights(graph),
        eweights=weights,
        tpwgts=shares.tolist(),
        options=options,
    )
    return np.asarray(cut.vertex_part, dtype=np.int64)


def _vertex_weights(graph: KeyGraph) -> Numbers:
    totals = np.bincount(graph.operator_of, graph.load, graph.operators)
    share = graph.load / np.where(totals > 0, totals, 1.0)[graph.operator_of]
    return np.rint(share * _VERTEX_SCALE).astype(np.int64)


def _adjacency(graph: KeyGraph) -> tuple[Numbers, Numbers, Numbers]:
    """Both directions of every edge, sorted by where they begin."""
    heaviest = float(graph.weight.max(initial=0.0)) or 1.0
    whole = np.maximum(1, np.rint(graph.weight / heaviest * _EDGE_SCALE)).astype(np.int64)
    begins = np.concatenate([graph.ends[:, 0], graph.ends[:, 1]])
    adjacent = np.concatenate([graph.ends[:, 1], graph.ends[:, 0]])
    order = np.lexsort((adjacent, begins))
    starts = np.zeros(graph.keys + 1, dtype=np.int64)
    np.cumsum(np.bincount(begins, minlength=graph.keys), out=starts[1:])
    return starts, adjacent[order], np.concatenate([whole, whole])[order]
