"""Placement: which host gives each executor its cores, so that little state moves.

Elasticutor 4.2. `cores[j][i]` is how many cores executor j has on host i. To change from one
allocation to another, cores are taken and given one by one, each where it moves least state: with
sⱼ bytes evenly over Xⱼ cores, xᵢⱼ of them on host i,

    C⁻ᵢⱼ = sⱼ(Xⱼ - xᵢⱼ) / (Xⱼ(Xⱼ - 1))     taking one core of host i from j
    C⁺ᵢⱼ = sⱼ(Xⱼ - xᵢⱼ) / (Xⱼ(Xⱼ + 1))     giving one to j

Executors that move more than φ bytes per second and core only accept cores of their own host. If
that can't be, φ doubles, until no executor is above it. Read as it must be meant:

- executors come in *descending* data intensity;
- nobody's last core is taken, since C⁻ is 0/0 there, and C⁺ is 0 for who has none;
- cores that nobody has are an executor without state: to take one costs nothing;
- victims with a core too many come first; one that falls below its number is served again, from
  cores too many. Data-intensive executors only ever give what they have too much of;
- more cores asked for than there are is said at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "PHI_BYTES_PER_S",
    "Demand",
    "Infeasible",
    "Placement",
    "place_cores",
    "place_cores_naively",
]

PHI_BYTES_PER_S = 512 * 1024.0

_Cores = list[dict[int, int]]  # per executor, by host


class Infeasible(ValueError):
    """More cores are asked for than there are."""


@dataclass(frozen=True)
class Demand:
    """What one executor should have: cores, near its host, with so much state and traffic."""

    cores: int
    host: int
    state_bytes: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def intensity(self) -> float:
        return self.bytes_per_s / max(self.cores, 1)


@dataclass(frozen=True)
class Placement:
    """Each executor's cores by host, the bytes of state that move for it, and the φ it took."""

    cores: tuple[dict[int, int], ...]
    moved_bytes: float
    phi_bytes_per_s: float


def place_cores(
    demands: Sequence[Demand],
    current: Sequence[dict[int, int]],
    cores: Sequence[int],
    phi_bytes_per_s: float = PHI_BYTES_PER_S,
) -> Placement:
    """The placement in which everybody has the cores asked for, near the current one."""
    _check(demands, current, cores)
    phi = phi_bytes_per_s
    highest = max((d.intensity for d in demands), default=0.0)
    while True:
        after = _Search(demands, current, cores, phi).run()
        if after is not None:
            return Placement(tuple(after), _moved(demands, current, after), phi)
        if phi >= highest:
            raise Infeasible("no placement was found although there are cores enough")
        phi *= 2


def place_cores_naively(
    demands: Sequence[Demand], current: Sequence[dict[int, int]], cores: Sequence[int]
) -> Placement:
    """The baseline `naive-ec`: anew, from the first free core on, whatever that moves."""
    _check(demands, current, cores)
    free = list(cores)
    host = 0
    after: _Cores = []
    for demand in demands:
        taken: dict[int, int] = {}
        for _ in range(demand.cores):
            while free[host] == 0:
                host += 1
            free[host] -= 1
            taken[host] = taken.get(host, 0) + 1
        after.append(taken)
    return Placement(tuple(after), _moved(demands, current, after), float("inf"))


class _Search:
    """Algorithm 1, over dictionaries: most executors have cores on few hosts."""

    def __init__(
        self,
        demands: Sequence[Demand],
        current: Sequence[dict[int, int]],
        cores: Sequence[int],
        phi: float,
    ) -> None:
        self.demands = demands
        self.current = current
        self.x: _Cores = [{i: n for i, n in each.items() if n > 0} for each in current]
        self.total = [sum(each.values()) for each in self.x]
        self.intense = [demand.intensity > phi for demand in demands]
        free = list(cores)
        self.on: list[set[int]] = [set() for _ in cores]
        for j, by_host in enumerate(self.x):
            for i, n in by_host.items():
                free[i] -= n
                self.on[i].add(j)
        self.free = {i: n for i, n in enumerate(free) if n > 0}
        self.spare = {j for j, d in enumerate(demands) if self.total[j] > d.cores}

    def run(self) -> _Cores | None:
        wanting = [j for j, d in enumerate(self.demands) if self.total[j] < d.cores]
        wanting.sort(key=lambda j: (-self.demands[j].intensity, j))
        while wanting:
            j = wanting.pop(0)
            while self.total[j] < self.demands[j].cores:
                core = self._near(j) if self.intense[j] else self._anywhere(j)
                if core is None:
                    return None
                i, victim = core
                self._move(i, victim, j)
                if victim is not None and self.total[victim] == self.demands[victim].cores - 1:
                    wanting.append(victim)
        self._release()
        return self.x

    def _near(self, j: int) -> tuple[int, int | None] | None:
        """A core of j's own host; nobody's, then one too many, then of someone not intense."""
        host = self.demands[j].host
        if host in self.free:
            return host, None
        could = [v for v in self.on[host] if v != j and self.total[v] > 1]
        for among in (
            [v for v in could if v in self.spare],
            [v for v in could if not self.intense[v]],
        ):
            if among:
                return host, min(among, key=lambda v: (self._taking(host, v), v))
        return None

    def _anywhere(self, j: int) -> tuple[int, int | None] | None:
        best: tuple[float, int, int] | None = None  # cost, victim (-1: nobody), host
        if self.free:
            hosts = [i for i in self.x[j] if i in self.free]
            # Where j has most already, or its own host, or else the first one: they cost the same.
            home = self.demands[j].host
            other = home if home in self.free else next(iter(self.free))
            i = max(hosts, key=lambda i: (self.x[j][i], -i)) if hosts else other
            best = (self._giving(i, j), -1, i)
            if best[0] == 0:
                return i, None
        for victim in self.spare:
            if victim == j:
                continue
            for i in self.x[victim]:
                cost = (self._taking(i, victim) + self._giving(i, j), victim, i)
                if best is None or cost < best:
                    best = cost
        if best is None:
            return None
        return best[2], None if best[1] < 0 else best[1]

    def _taking(self, i: int, j: int) -> float:
        total = self.total[j]
        return self.demands[j].state_bytes * (total - self.x[j][i]) / (total * (total - 1))

    def _giving(self, i: int, j: int) -> float:
        total = self.total[j]
        if total == 0:
            return 0.0
        here = self.x[j].get(i, 0)
        return self.demands[j].state_bytes * (total - here) / (total * (total + 1))

    def _move(self, i: int, victim: int | None, j: int) -> None:
        if victim is None:
            self.free[i] -= 1
            if not self.free[i]:
                del self.free[i]
        else:
            self._take(i, victim)
        self.x[j][i] = self.x[j].get(i, 0) + 1
        self.on[i].add(j)
        self.total[j] += 1

    def _take(self, i: int, victim: int) -> None:
        self.x[victim][i] -= 1
        self.total[victim] -= 1
        if not self.x[victim][i]:
            del self.x[victim][i]
            self.on[i].discard(victim)
        if self.total[victim] <= self.demands[victim].cores:
            self.spare.discard(victim)

    def _release(self) -> None:
        """What nobody wanted is given back: a channel that is not asked for should not run."""
        for j in sorted(self.spare):
            while self.total[j] > max(1, self.demands[j].cores):
                self._take(min(self.x[j], key=lambda i: self._release_order(i, j)), j)

    def _release_order(self, i: int, j: int) -> tuple[float, float, int]:
        """What costs least first; of equals, the host that has given least of what it had."""
        return self._taking(i, j), -self.x[j][i] / self.current[j].get(i, 1), i


def _check(
    demands: Sequence[Demand], current: Sequence[dict[int, int]], cores: Sequence[int]
) -> None:
    if len(demands) != len(current):
        raise ValueError(f"{len(demands)} executors have {len(current)} placements")
    if any(d.cores < 1 for d in demands):
        raise ValueError("every executor needs at least one core")
    demanded, available = sum(d.cores for d in demands), sum(cores)
    if demanded > available:
        raise Infeasible(f"{demanded} cores are asked for and there are {available}")


def _moved(
    demands: Sequence[Demand], before: Sequence[dict[int, int]], after: Sequence[dict[int, int]]
) -> float:
    """C(X | X̃): the state that leaves a host."""
    moved = 0.0
    for demand, old, new in zip(demands, before, after, strict=True):
        had, has = sum(old.values()), sum(new.values())
        if old == new or not had:
            continue
        for i, n in old.items():
            moved += demand.state_bytes * max(0.0, n / had - new.get(i, 0) / has)
    return moved
