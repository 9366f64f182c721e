"""On which host each channel should run: little state is read anew, and no host has too much.

A host keeps the state of slots that it had, so a channel is at home where its slots are. Operators
of one *level* of the flow may run at the same time and share the cores; those of different levels
come one after the other, and each has all of them. More channels than cores come in waves, and the
fewest waves that fit say how many channels a host takes.

What has a host keeps it. Channels are placed that have none, because they are new or their host is
gone, and as many of a host that has more than its part as are too many there: to use idle cores is
worth reading state, and nothing else is. So the choice is a fixed point of itself.

Operators that move more than φ bytes per second and channel should be on one host. Whether they
can, and with whom they change places for it, is the matter of Algorithm 1 (`placement.py`,
Elasticutor 4.2), which takes state for evenly spread. Everybody else is placed by what their slots
really have where: as many as can be stay, and what is read anew is the least there is, but for a
tenth of the state of the channels in question. A difference of less than that is no reason to
prefer a host; then the one with fewest channels for its cores and speed is chosen, so that a slow
one gets less.

Channel i of an operator goes to the host of channel i of the operator that it reads, where both
have as many: keys that have been brought together by the numbers of their channels are then on one
host. That is worth reading another tenth of the channel's state, and no channel that could stay
leaves for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from braided.control.routing.balance import channel_loads
from braided.control.routing.placement import (
    PHI_BYTES_PER_S,
    Demand,
    Infeasible,
    place_cores,
    place_cores_naively,
)
from braided.control.routing.residence import NOWHERE, Residence
from braided.control.routing.seating import Costs, Seats, assign_seats
from braided.control.routing.table import Loads, RoutingTable

__all__ = ["ChannelDemand", "Host", "Residence", "choose_hosts", "moved_bytes"]

_PARTS = 10
"""A difference of less than one such part of a channel's state is none."""


@dataclass(frozen=True)
class Host:
    """A host: how many channels it runs at a time, and how fast, where the fastest has 1."""

    name: str
    cores: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a host has a name")
        if self.cores < 1:
            raise ValueError(f"host {self.name!r} has {self.cores} cores; without one it is none")
        if not 0 < self.speed <= 1:
            raise ValueError(f"the speed of a host is at most 1 and above 0, not {self.speed}")


@dataclass(frozen=True, eq=False)
class ChannelDemand:
    """An operator whose channels want hosts: its table, whose hosts are those of now, and where
    its state is. `level` is its depth in the flow; operators of the same one share the cores.
    `upstream` are the operators whose output it reads, in the order in which it would be with them.
    """

    table: RoutingTable
    residence: Residence
    state_bytes: Loads  # of each slot
    bytes_per_s: float = 0.0  # of rows in and out
    level: int = 0
    upstream: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        slots = self.table.slots.size
        if not self.residence.of_slot.size == self.state_bytes.size == slots:
            raise ValueError(f"{slots} slots have as many residences and sizes, or it is no demand")


def choose_hosts(
    demands: Mapping[str, ChannelDemand], hosts: Sequence[Host], naive: bool = False
) -> dict[str, tuple[str, ...]]:
    """The host of every channel of every operator; the tables' own if nothing has to change.

    `naive` is the baseline `naive-ec`: anew from the first host on, whatever that moves.
    """
    if not hosts:
        raise Infeasible("channels want hosts and there is none")
    if len({host.name for host in hosts}) < len(hosts):
        raise ValueError("two hosts have one name")
    chosen: dict[str, tuple[str, ...]] = {}
    for level in sorted({demand.level for demand in demands.values()}):
        of_level = [name for name, demand in demands.items() if demand.level == level]
        wanted = [demands[name] for name in of_level]
        if naive:
            numbers = _naive_hosts(wanted, hosts)
        else:
            numbers = _hosts_of_level(wanted, hosts, [_models(each, chosen) for each in wanted])
        for name, of_channels in zip(of_level, numbers, strict=True):
            chosen[name] = tuple(hosts[n].name for n in of_channels.tolist())
    return {name: chosen[name] for name in demands}


def moved_bytes(demand: ChannelDemand, hosts: Sequence[str]) -> float:
    """The bytes of slots that are not where their channel will run, if channels have these hosts;
    none where all is one host, `()`.
    """
    if not hosts:
        return 0.0
    if len(hosts) != demand.table.channels:
        raise ValueError(f"{demand.table.channels} channels have {len(hosts)} hosts")
    names = list(dict.fromkeys(name for name in hosts if name))
    number = {name: n for n, name in enumerate(names)}
    # Who has no host yet is nowhere, and that is another nowhere than that of a slot.
    of_channel = np.array([number.get(name, -2) for name in hosts], dtype=np.int32)
    moved = of_channel[demand.table.slots] != demand.residence.among(names)
    return float(demand.state_bytes[moved | (demand.residence.of_slot == NOWHERE)].sum())


def _models(demand: ChannelDemand, chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """For each channel the host of that of the same number upstream; none if there are none."""
    upstream = (chosen.get(name, ()) for name in demand.upstream)
    channels = demand.table.channels
    return next((each for each in upstream if len(each) == channels), ("",) * channels)


def _naive_hosts(demands: Sequence[ChannelDemand], hosts: Sequence[Host]) -> list[Seats]:
    wanted = [Demand(cores=demand.table.channels, host=0) for demand in demands]
    capacity = _capacity(demands, hosts)
    placement = place_cores_naively(wanted, [{} for _ in wanted], capacity.tolist())
    return [
        np.repeat(list(cores), list(cores.values())).astype(np.int64) for cores in placement.cores
    ]


def _hosts_of_level(
    demands: Sequence[ChannelDemand], hosts: Sequence[Host], models: Sequence[Sequence[str]]
) -> list[Seats]:
    capacity = _capacity(demands, hosts)
    number = {host.name: n for n, host in enumerate(hosts)}

    def numbers(names: Iterable[Sequence[str]]) -> Seats:
        flat = [number.get(name, NOWHERE) for each in names for name in each]
        return np.array(flat, dtype=np.int64)

    seats = numbers(demand.table.hosts or [""] * demand.table.channels for demand in demands)
    owner = np.repeat(np.arange(len(demands)), [demand.table.channels for demand in demands])
    if (seats < 0).any() or (_count(seats, len(hosts)) > capacity).any():
        seats = _LevelToPlace(demands, hosts, capacity, seats, owner, numbers(models)).place()
    return [seats[owner == j] for j in range(len(demands))]


def _capacity(demands: Sequence[ChannelDemand], hosts: Sequence[Host]) -> Seats:
    """How many channels each host takes: its cores, as often as there have to be waves."""
    cores = np.array([host.cores for host in hosts], dtype=np.int64)
    channels = sum(demand.table.channels for demand in demands)
    return cores * max(1, -(-channels // int(cores.sum())))


class _LevelToPlace:
    """Operators that share the cores, of which some channels have to be placed.

    Channels of all operators are in one row; `owner` has the operator and `seats` the host of each,
    and `models` the host of the channel upstream that it should be with.
    """

    def __init__(
        self,
        demands: Sequence[ChannelDemand],
        hosts: Sequence[Host],
        capacity: Seats,
        seats: Seats,
        owner: Seats,
        models: Seats,
    ) -> None:
        self.demands = demands
        self.capacity = capacity
        self.seats = seats
        self.owner = owner
        self.models = models
        self.hosts = len(hosts)
        self.room = capacity * np.array([host.speed for host in hosts])
        names = [host.name for host in hosts]
        self.resident = np.concatenate([_resident(demand, names) for demand in demands])
        self.bytes = np.concatenate([_channel_bytes(demand) for demand in demands])
        self.intensity = np.array([d.bytes_per_s / d.table.channels for d in demands])

    def place(self) -> Seats:
        intense = self._place_intense()
        taken = _count(self.seats[intense], self.hosts)
        others = np.flatnonzero(~intense)
        # Who is on a host that has room for all of them stays; the rest have to share seats.
        is_full = _count(self.seats[others], self.hosts) > self.capacity - taken
        waits = np.append(is_full, True)[self.seats[others]]  # -1, no host, is the last one
        staying, waiting = others[~waits], others[waits]
        taken += _count(self.seats[staying], self.hosts)
        self.seats[waiting] = assign_seats(
            self._costs(waiting), self.capacity - taken, taken, self.room
        )
        return self.seats

    def _costs(self, channels: Seats) -> Costs:
        """What channels would read on each host, in parts of their state; where they are, so much
        less that nobody leaves who can stay.
        """
        size = self.bytes[channels]
        costs: Costs = np.repeat(_whole(size)[:, None], self.hosts, axis=1)
        # Few hosts have anything of a channel, and everywhere else all of it is read.
        resident = self.resident[channels]
        mine, host = np.divmod(np.flatnonzero(resident), self.hosts)
        read = np.maximum(size[mine] - resident[mine, host], 0.0)
        costs[mine, host] = _whole(np.rint(_PARTS * read / size[mine]) * size[mine] / _PARTS)
        # Elsewhere than the channel that gives it rows: as if another part of its state were read,
        # and a byte where there is none yet.
        follows = self.models[channels]
        led = np.flatnonzero(follows >= 0)
        apart = _whole(size[led] / _PARTS) + 1
        costs[led] += apart[:, None]
        costs[led, follows[led]] -= apart
        seated = np.flatnonzero(self.seats[channels] >= 0)
        if seated.size:
            costs[seated, self.seats[channels[seated]]] -= int(costs.max(axis=1).sum()) + 1
        return costs

    def _place_intense(self) -> npt.NDArray[np.bool_]:
        """Gives intense operators seats on their own hosts, and says which channels are theirs."""
        if not (self.intensity > PHI_BYTES_PER_S).any():
            return np.zeros(self.owner.size, dtype=np.bool_)
        kept = self._kept()
        homes = self._homes(kept)
        wanted = [
            Demand(d.table.channels, home, float(d.state_bytes.sum()), d.bytes_per_s)
            for d, home in zip(self.demands, homes, strict=True)
        ]
        current: list[dict[int, int]] = [{} for _ in wanted]
        for j, host in zip(self.owner[kept].tolist(), self.seats[kept].tolist(), strict=True):
            current[j][host] = current[j].get(host, 0) + 1
        placement = place_cores(wanted, current, self.capacity.tolist())
        intense = self.intensity > placement.phi_bytes_per_s
        is_theirs: npt.NDArray[np.bool_] = intense[self.owner]
        placed = is_theirs & ~kept
        self.seats[placed] = np.array(homes)[self.owner[placed]]
        return is_theirs

    def _kept(self) -> npt.NDArray[np.bool_]:
        """Channels that have a host, without those too many; intense ones and those with most state
        there come first.
        """
        kept = self.seats >= 0
        for host in np.flatnonzero(_count(self.seats, self.hosts) > self.capacity).tolist():
            mine = np.flatnonzero(self.seats == host)
            state, intensity = self.resident[mine, host], self.intensity[self.owner[mine]]
            mine = mine[np.lexsort((mine, -state, -intensity))]
            kept[mine[self.capacity[host] :]] = False
        return kept

    def _homes(self, kept: npt.NDArray[np.bool_]) -> list[int]:
        """Every operator's own host: of those with room for it, counting nobody who is less
        intense, where most of it is, where its state is, where its rows come from, or where nobody
        has to leave.
        """
        homes = [0] * len(self.demands)
        empty = self.capacity - _count(self.seats[kept], self.hosts)
        left = self.capacity.copy()
        for j in np.argsort(-self.intensity, kind="stable").tolist():
            mine = self.owner == j
            here = _count(self.seats[mine & kept], self.hosts)
            missing = int(mine.sum()) - int(here.sum())
            fits = left - here >= missing
            state = self.resident[mine].sum(axis=0)
            near = _count(self.models[mine], self.hosts)
            emptiness = empty * self.room / self.capacity
            best = np.lexsort((-emptiness, empty < missing, -near, -state, -here, ~fits))
            homes[j] = int(best[0])
            left -= here
            left[homes[j]] -= missing
        return homes


def _whole(values: Loads) -> Costs:
    return np.rint(values).astype(np.int64)


def _count(seats: Seats, hosts: int) -> Seats:
    return np.bincount(seats[seats >= 0], minlength=hosts)


def _resident(demand: ChannelDemand, hosts: Sequence[str]) -> Loads:
    """The bytes that each host has of each channel's slots."""
    among = demand.residence.among(hosts)
    here = among >= 0
    where = demand.table.slots[here].astype(np.int64) * len(hosts) + among[here]
    resident = np.bincount(where, demand.state_bytes[here], demand.table.channels * len(hosts))
    return resident.astype(np.float64, copy=False).reshape(-1, len(hosts))


def _channel_bytes(demand: ChannelDemand) -> Loads:
    return channel_loads(demand.table, demand.state_bytes)
