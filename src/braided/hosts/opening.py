"""Puts together what places the channels of a query, where there is something to place them on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from braided.errors import OptionError
from braided.hosts.errands import Errands
from braided.hosts.fleet import Fleet, FleetBounds
from braided.hosts.host_map import HostMap
from braided.hosts.probe import leave_word, refuse_unfit
from braided.hosts.transition import Transition
from braided.options import Options
from braided.spark.executors import SparkExecutors, runs_on_executors
from braided.spark.placed_frames import PlacedFrames
from braided.tasks.state_location import StateLocation

__all__ = ["open_transition", "place_frames"]

log = logging.getLogger("braided")


def place_frames(spark: SparkSession, options: Options) -> PlacedFrames | None:
    """What runs channels on hosts; None where all is one host, or it can't be had."""
    if options.placement == "off" or not runs_on_executors(spark):
        return None
    try:
        return PlacedFrames(spark)
    except Exception as error:  # whatever a JVM may say
        log.warning(
            "channels run where Spark puts them, and read their state there: they can't be placed "
            "on hosts of this cluster (%s)",
            str(error).splitlines()[0],
        )
        return None


def open_transition(
    spark: SparkSession,
    placed: PlacedFrames | None,
    location: StateLocation,
    upstream: Mapping[str, tuple[str, ...]],
    options: Options,
    modules: Sequence[str],
    ring: Callable[[], None],
) -> Transition | None:
    """What decides where channels run; `modules` are what tasks import, `ring` asks for a batch."""
    if placed is None:
        _refuse_fleet(options, "there are no executors to ask for on this master")
        if runs_on_executors(spark):
            leave_word(location.store, location.flow)
            there = SparkExecutors(spark).observed()
            refuse_unfit(spark, None, location.store, location.flow, there)
        return None
    executors = SparkExecutors(spark)
    if executors.has_dynamic_allocation:
        _refuse_fleet(
            options,
            "Spark's own dynamic allocation asks for executors here, too, and would undo it: set "
            "spark.dynamicAllocation.enabled=false, or leave the option out",
        )
    hosts = HostMap(executors)
    leave_word(location.store, location.flow)
    refuse_unfit(spark, placed, location.store, location.flow, hosts.observe())
    hosts.found_fit(executor.id for executor in hosts.to_be_tried)
    fleet = None
    if options.executors_most is not None:
        bounds = FleetBounds(options.executors_least or 1, options.executors_most)
        fleet = Fleet(spark.sparkContext, executors, bounds, executors.cores_each)
    errands = Errands(spark, placed, location, modules, ring)
    naive = options.placement == "naive"
    return Transition(
        hosts,
        levels_of(upstream),
        upstream,
        errands,
        fleet,
        options.prefetch,
        naive,
        executors.has_dynamic_allocation,
    )


def levels_of(upstream: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """How deep each operator is in the flow: those of one level may run at the same time."""
    levels: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in levels:
            levels[name] = 1 + max((level(each) for each in upstream[name]), default=-1)
        return levels[name]

    return {name: level(name) for name in upstream}


def _refuse_fleet(options: Options, why: str) -> None:
    if options.executors_most is not None:
        raise OptionError(f"braided.cluster.maxExecutors is {options.executors_most}, but {why}")
