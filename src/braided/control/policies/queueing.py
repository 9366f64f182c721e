"""M/M/k and Jackson networks: how long rows take at k channels, and the best k for a target.

An operator with arrival rate λ whose channels process μ rows a second each is taken for an M/M/k
queue. Rows wait with Erlang's C,

    B(0) = 1,  B(k) = a·B(k-1) / (k + a·B(k-1)),   a = λ/μ
    C(k) = B(k) / (1 - ρ(1 - B(k))),               ρ = a/k
    E[T](k) = 1/μ + C(k) / (kμ - λ),

and a flow of operators is a Jackson network (Elasticutor 4.1):

    E[T](k₁..kₘ) = (1/λ₀) Σ λⱼ E[Tⱼ](kⱼ).

Each term falls and flattens with its k, so the greedy way is the optimal one: begin with the least
stable numbers, ⌊λⱼ/μⱼ⌋ + 1, and add the channel that lowers E[T] most, until the target is met.
(The paper begins at ⌈λⱼ/μⱼ⌉ + 1, which can be one more than needed.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Allocation", "Station", "allocate", "erlang_c", "sojourn_s"]


def erlang_c(offered: float, channels: int) -> float:
    """The probability that a row has to wait; 1 when there is more work than channels."""
    if channels <= offered:
        return 1.0
    return _waiting(offered, channels, _blocking(offered, channels))


def sojourn_s(arrival_rate: float, service_rate: float, channels: int) -> float:
    """E[T] of M/M/k, waiting and service; infinite when there is more work than channels."""
    if service_rate <= 0 or channels * service_rate <= arrival_rate:
        return math.inf
    waits = erlang_c(arrival_rate / service_rate, channels)
    return 1 / service_rate + waits / (channels * service_rate - arrival_rate)


@dataclass(frozen=True)
class Station:
    """One operator of the network.

    `weight` is what its time counts in the whole: λⱼ/λ₀ for a Jackson network. `batch_s` is the
    work of a micro-batch, in seconds of one channel, which all k channels share; it comes on top.
    """

    arrival_rate: float
    service_rate: float
    weight: float = 1.0
    batch_s: float = 0.0
    channels_max: int = 1 << 30

    def least(self) -> int:
        """The least number of channels that keeps up."""
        return math.floor(self.arrival_rate / self.service_rate) + 1

    def time_s(self, channels: int) -> float:
        queue = sojourn_s(self.arrival_rate, self.service_rate, channels)
        return self.weight * queue + self.batch_s / channels

    def least_s(self) -> float:
        """What no number of channels gets below: nobody waits."""
        return self.weight / self.service_rate + self.batch_s / self.channels_max

    def times(self, channels: int) -> Callable[[], float]:
        """Gives `time_s` for that many channels, then for one more, and so on, each in one step."""
        offered = self.arrival_rate / self.service_rate
        at, blocking = channels, _blocking(offered, channels)

        def following() -> float:
            nonlocal at, blocking
            waits = _waiting(offered, at, blocking)
            queue = 1 / self.service_rate + waits / (at * self.service_rate - self.arrival_rate)
            time_s = self.weight * queue + self.batch_s / at
            at += 1
            blocking = offered * blocking / (at + offered * blocking)
            return time_s

        return following


@dataclass(frozen=True)
class Allocation:
    """Channels per station, the time that is expected, and whether it meets the target."""

    channels: tuple[int, ...]
    time_s: float
    feasible: bool


def allocate(stations: Sequence[Station], target_s: float, available: int) -> Allocation:
    """The fewest channels with which the sum of the stations' times is at most the target.

    Where the channels there are do not even keep up with the load, they go to whoever has most
    load per channel.
    """
    channels = [min(station.least(), station.channels_max) for station in stations]
    if sum(channels) > available or any(
        n < station.least() for n, station in zip(channels, stations, strict=True)
    ):
        return Allocation(tuple(_overloaded(stations, available)), math.inf, False)
    upcoming = [s.times(n) for s, n in zip(stations, channels, strict=True)]
    times = [following() for following in upcoming]
    # What one more channel would bring, best first.
    heap: list[tuple[float, int, float]] = []

    def offer(j: int) -> None:
        if channels[j] < stations[j].channels_max:
            then = upcoming[j]()
            heapq.heappush(heap, (then - times[j], j, then))

    for j in range(len(stations)):
        offer(j)
    total = math.fsum(times)
    left = available - sum(channels)
    while total > target_s and left > 0 and heap:
        gain, j, then = heapq.heappop(heap)
        channels[j] += 1
        left -= 1
        times[j] = then
        total += gain
        offer(j)
    total = math.fsum(times)
    # The running sum and the sum may round apart.
    return Allocation(tuple(channels), total, total <= target_s * (1 + 1e-9))


def _overloaded(stations: Sequence[Station], available: int) -> list[int]:
    counts = [1] * len(stations)
    heap = [(-s.arrival_rate / s.service_rate, j) for j, s in enumerate(stations)]
    heapq.heapify(heap)
    for _ in range(max(0, available - len(stations))):
        if not heap:
            break
        _, j = heapq.heappop(heap)
        if counts[j] < stations[j].channels_max:
            counts[j] += 1
            offered = stations[j].arrival_rate / stations[j].service_rate
            heapq.heappush(heap, (-offered / counts[j], j))
    return counts


def _blocking(offered: float, channels: int) -> float:
    """Erlang's B."""
    blocking = 1.0
    for k in range(1, channels + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return blocking


def _waiting(offered: float, channels: int, blocking: float) -> float:
    return blocking / (1.0 - offered / channels * (1.0 - blocking))
