"""Assigns keys anew between any two batches: whichever have state, to whatever slots."""

from __future__ import annotations

import random
from typing import Any

from braided.api.query import ElasticQuery
from braided.control.routing.key_assignment import KeyAssignment
from braided.flow.key_hashes import many_key_hashes
from braided.flow.route import can_be_pinned
from braided.store.slots.channel_state import ChannelState, SnapshotLimits

__all__ = ["Reassigner"]


class Reassigner:
    """Proposes assignments of all operators of queries that can have some."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._hashes: dict[tuple[str, bytes], tuple[int, int]] = {}

    def propose(self, query: ElasticQuery) -> int:
        """For the next batch; how many keys are assigned."""
        chance, opened = self._chance, query._opened
        spark, steps = opened.control._hashes._spark, opened.control._hashes._steps
        view, files = opened.engine.version.view, opened.engine._steps.processing._plan
        assigned = {}
        for name, step in steps.items():
            version = view.operators.get(name)
            if version is None or not step.can_be_pinned or not can_be_pinned(step.key_schema):
                continue
            state = ChannelState(files.location.store, None, name, version, SnapshotLimits())
            keys = sorted(
                key for slot in range(version.meta.slots) for key, _ in state.slot(slot).records()
            )
            self._hash(spark, name, step.key_schema, keys)
            chosen = chance.sample(keys, chance.randint(0, len(keys)))
            slots = [chance.randrange(version.meta.slots) for _ in chosen]
            hashes = [self._hashes[name, key] for key in chosen]
            columns = [[each[i] for each in hashes] for i in (0, 1)]
            assigned[name] = KeyAssignment.of(chosen, *columns, slots)
        opened.commands.propose_assignment(assigned)
        return sum(map(len, assigned.values()))

    def _hash(self, spark: Any, name: str, schema: Any, keys: list[bytes]) -> None:
        new = [key for key in keys if (name, key) not in self._hashes]
        if new:
            hashes, checks = many_key_hashes(spark, schema, new)
            pairs = zip(hashes.tolist(), checks.tolist(), strict=True)
            self._hashes |= dict(zip([(name, key) for key in new], pairs, strict=True))
