"""The options of a query: one table that parses them, explains them and words their errors.

An option is given as `.option("braided.slots", 512)` on the writer or as `spark.braided.slots` in
the session's configuration; the writer's wins. Names don't care about case, as Spark's options
don't. Whatever is wrong is found before the query starts, and all of it is told at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from braided.control.locality.graph import ALPHA
from braided.control.measure.window import LENGTH_BATCHES
from braided.control.policies.balancers import TOLERATED
from braided.control.policies.ds2 import CATCH_UP_S, UTILISATION
from braided.control.policy import BalancePolicy, ScalePolicy
from braided.control.registry import balance_policy
from braided.errors import OptionError
from braided.option_values import (
    BALANCE,
    COLUMN,
    DIRECTORY,
    FACTOR,
    FLAG,
    NAMES,
    SCALE,
    SECONDS,
    SHARE,
    SIZE,
    TARGET,
    THRESHOLD,
    ZONES,
    ValueKind,
    one_of,
    text_of,
    whole,
)
from braided.store.slots.channel_state import SnapshotLimits

__all__ = ["MAX_CHANNELS", "MAX_SLOTS", "Options"]

MAX_SLOTS = 262_144
MAX_CHANNELS = 65_536  # a channel number fits 16 bits in the manifest

_WRITER_PREFIX = "braided."
_SESSION_PREFIX = "spark.braided."
_STORE = "store."
"""What begins so is for the client of the checkpoint's store, which knows its own settings."""

_SNAPSHOTS = SnapshotLimits()


@dataclass(frozen=True)
class Options:
    """What a query runs with, every value checked."""

    slots: int = 256
    channels: int = 1
    snapshot_min_bytes: int = _SNAPSHOTS.snapshot_min_bytes
    snapshot_factor: float = _SNAPSHOTS.snapshot_factor
    snapshots_per_task: int = _SNAPSHOTS.snapshots_per_task
    retained_manifests: int = 100
    full_manifest_every: int = 64
    order_preserving: bool = False
    order_by: str | None = None
    on_error: str = "fail"
    late: str = "drop"
    drop_operators: tuple[str, ...] = ()
    cache_dir: str | None = None
    cache_max_bytes: int | None = None
    scale: str | ScalePolicy | None = None
    scale_utilisation: float = UTILISATION
    scale_up_delay_s: float = 0.0
    scale_down_delay_s: float = 3.0
    scale_cooldown_s: float = 0.0
    scale_catch_up_s: float = CATCH_UP_S
    scale_exclude: tuple[str, ...] = ()
    scale_dry_run: bool = False
    balance: str | BalancePolicy = "elasticutor"
    same_batch: str = "auto"
    latency_target_s: float | None = None
    channels_min: int | None = None
    channels_max: int | None = None
    operators_min: Mapping[str, int] = field(default_factory=dict)
    operators_max: Mapping[str, int] = field(default_factory=dict)
    """Of single operators, by their names in lower case."""
    balance_threshold: float = TOLERATED
    hot_keys: str | None = None
    window_batches: int = LENGTH_BATCHES
    executors: int = 1
    executors_review_batches: int = 600
    stop_timeout_s: float = 60.0
    placement: str = "on"
    prefetch: bool = True
    executors_least: int | None = None
    executors_most: int | None = None
    routing: str | None = None
    takeover: bool = False
    cut: bool = False
    locality: str = "off"
    locality_period_batches: int = 60
    locality_memory_bytes: int = 128 << 10
    locality_every: int = 16
    locality_imbalance: float = ALPHA
    locality_dry_run: bool = False
    zones: Mapping[str, str] = field(default_factory=dict)
    """The zone of a host, by its name."""
    store: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the checkpoint's store, which may be secrets."""
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """The fields that somebody asked for, and that are not there by default."""

    @classmethod
    def parse(
        cls,
        writer: Mapping[str, Any],
        session: Mapping[str, Any] | None = None,
        *,
        channels: int = 1,
    ) -> Options:
        """Reads the options from a writer's options and a session's configuration.

        Names without our prefix are somebody else's and passed over. `channels` is what
        `braided.channels` falls back on: the caller knows Spark's default parallelism.
        """
        found: dict[str, tuple[str, Any]] = {}  # field: (the name as written, the value)
        store: dict[str, str] = {}
        of_operators: dict[tuple[str, str], tuple[str, str]] = {}  # (bound, operator): the same
        problems = []
        for mapping, prefix in ((session or {}, _SESSION_PREFIX), (writer, _WRITER_PREFIX)):
            for written, value in mapping.items():
                if value is None or not written.lower().startswith(prefix):
                    continue
                if written.lower().startswith(prefix + _STORE):
                    store[written[len(prefix + _STORE) :].lower()] = text_of(value)
                    continue
                own = _OF_OPERATOR.fullmatch(written[len(prefix) :].lower())
                if own is not None:
                    of_operators[own[2], own[1]] = (written, text_of(value))
                    continue
                option = _BY_NAME.get(written[len(prefix) :].lower())
                if option is None:
                    problems.append(_unknown(written, prefix))
                else:
                    found[option.field] = (written, option.kind.given(value))
        values: dict[str, Any] = {}
        for option in _TABLE:
            if option.field not in found:
                continue
            written, text = found[option.field]
            try:
                values[option.field] = option.kind.parse(text)
            except ValueError:
                problems.append(f"{written} is {text!r}; it takes {option.kind.takes}.")
        for (bound, operator), (written, text) in of_operators.items():
            try:
                values.setdefault(f"operators_{bound}", {})[operator] = _CHANNELS.parse(text)
            except ValueError:
                problems.append(f"{written} is {text!r}; it takes {_CHANNELS.takes}.")
        names = {field: written for field, (written, _) in found.items()}
        problems += _contradictions(values, names)
        if problems:
            if len(problems) > 1:
                problems = [f"{len(problems)} options are wrong:", *problems]
            raise OptionError("\n".join(problems))
        # More channels than slots would idle, which nobody who did not ask for it should get.
        usual = max(1, min(channels, values.get("slots", cls.slots)))
        usual = max(usual, values.get("channels_min", usual))
        values.setdefault("channels", min(usual, values.get("channels_max", usual)))
        return cls(**values, store=store, given=frozenset(found))

    @staticmethod
    def names() -> list[str]:
        """Every option's name, as given to a writer."""
        return [_WRITER_PREFIX + option.name for option in _TABLE]

    @staticmethod
    def describe() -> str:
        """All options as a Markdown table, for the documentation."""
        lines = ["| option | takes | default | meaning |", "|---|---|---|---|"]
        for option in _TABLE:
            default = option.default or option.kind.show(_DEFAULTS[option.field])
            name = _WRITER_PREFIX + option.name
            lines.append(f"| `{name}` | {option.kind.takes} | {default} | {option.meaning} |")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Option:
    name: str
    field: str
    kind: ValueKind
    meaning: str
    default: str = ""  # in words, where the field's default does not say it


_ON_ERROR = one_of("fail", "divert")
_LOCALITY = one_of("auto", "on", "off")
_LATE = one_of("drop", "divert")
_PLACEMENT = one_of("on", "naive", "off")
_SAME_BATCH = one_of("auto", "on", "off")
_HOT_KEYS = one_of("split", "pin", "off")

_TABLE = (
    _Option(
        "slots",
        "slots",
        whole(1, MAX_SLOTS),
        "how many slots an operator's keys are hashed into; fixed at its first start",
    ),
    _Option(
        "channels",
        "channels",
        whole(1, MAX_CHANNELS),
        "how many channels an operator has at its first start; `rescale` changes it while the "
        "query runs, and a restart goes on with what it had",
        default="Spark's default parallelism",
    ),
    _Option(
        "snapshot.minBytes",
        "snapshot_min_bytes",
        SIZE,
        "a slot with less changelog than this, in no more than "
        f"{_SNAPSHOTS.snapshot_runs} runs, is not worth a snapshot",
    ),
    _Option(
        "snapshot.factor",
        "snapshot_factor",
        FACTOR,
        "a slot gets a new snapshot when its changelog is more than this many times its size",
    ),
    _Option(
        "snapshot.perTask",
        "snapshots_per_task",
        whole(1),
        "how many of its slots a task snapshots at most in one batch",
    ),
    _Option(
        "retainedManifests",
        "retained_manifests",
        whole(2),
        "how many batches back the checkpoint can be read; older files are deleted",
    ),
    _Option(
        "fullManifestEvery",
        "full_manifest_every",
        whole(1),
        "every so many batches a manifest is full and not a delta",
    ),
    _Option(
        "orderPreserving",
        "order_preserving",
        FLAG,
        "output in the order a single channel would give, merged in one last task",
    ),
    _Option(
        "orderBy",
        "order_by",
        COLUMN,
        "rows of a key are processed in the order of this column",
        default="the order of arrival",
    ),
    _Option(
        "onError",
        "on_error",
        _ON_ERROR,
        "what becomes of a row whose operator raises: the query fails, or the row goes to "
        "`braided.deadLetters`",
    ),
    _Option(
        "routing",
        "routing",
        DIRECTORY,
        "files that say which keys a new query has together ([control](docs/control.md)); one that "
        "goes on keeps to its own",
        default="none: keys are where their hashes say",
    ),
    _Option(
        "dropOperators",
        "drop_operators",
        NAMES,
        "operators of the checkpoint that the flow has no more: their state is dropped, and can be "
        "read as long as batches that had it are retained",
        default="none",
    ),
    _Option(
        "late",
        "late",
        _LATE,
        "what becomes of a row that the watermark has passed: it is counted and dropped, or goes "
        "to `braided.lateRows` as well",
    ),
    _Option(
        "cache.dir",
        "cache_dir",
        DIRECTORY,
        "where each host keeps its copy of the state",
        default="Spark's local directory on that host",
    ),
    _Option(
        "cache.maxBytes",
        "cache_max_bytes",
        SIZE,
        "of how many bytes of state a host keeps a copy, on twice as many of its disk at most; "
        "the slots used longest ago are left out",
        default="a quarter of the disk",
    ),
    _Option(
        "scale",
        "scale",
        SCALE,
        "who decides how many channels operators have; with `off`, only `rescale` does",
        default="`off`; `model` with a latencyTarget, else `ds2` with a channels.max",
    ),
    _Option(
        "scale.utilisation",
        "scale_utilisation",
        SHARE,
        "how busy `ds2` wants channels to be; the rest is for chance and skew",
    ),
    _Option(
        "scale.upDelay",
        "scale_up_delay_s",
        SECONDS,
        "how long more channels must have been asked for before they are taken",
    ),
    _Option(
        "scale.downDelay",
        "scale_down_delay_s",
        SECONDS,
        "how long fewer channels must have been enough before any are given up, three batches at "
        "least",
    ),
    _Option(
        "scale.coolDown",
        "scale_cooldown_s",
        SECONDS,
        "how long after a change of its channels an operator keeps them",
    ),
    _Option(
        "scale.catchUp",
        "scale_catch_up_s",
        TARGET,
        "the time in which `ds2` and `model` want a backlog to be gone",
    ),
    _Option(
        "scale.exclude",
        "scale_exclude",
        NAMES,
        "operators whose channels stay as they are, or as `rescale` makes them",
        default="none",
    ),
    _Option(
        "scale.dryRun",
        "scale_dry_run",
        FLAG,
        "whether `braided.scale` only says in the event log what it would do",
    ),
    _Option(
        "channels.min",
        "channels_min",
        whole(1, MAX_CHANNELS),
        "the fewest channels that `braided.scale` gives an operator",
        default="1",
    ),
    _Option(
        "channels.max",
        "channels_max",
        whole(1, MAX_CHANNELS),
        "the most channels that `braided.scale` gives an operator",
        default="Spark's default parallelism, or `braided.channels` if that is more",
    ),
    _Option(
        "operator.<name>.channels.min",
        "operators_min",
        whole(1, MAX_CHANNELS),
        "the fewest channels of the operator of that name",
        default="`braided.channels.min`",
    ),
    _Option(
        "operator.<name>.channels.max",
        "operators_max",
        whole(1, MAX_CHANNELS),
        "the most channels of the operator of that name",
        default="`braided.channels.max`",
    ),
    _Option(
        "latencyTarget",
        "latency_target_s",
        TARGET,
        "the time from arrival to output that 95 of 100 rows are to have at most; "
        "`braided.scale=model` keeps to it with few channels, held against what is measured",
        default="1s for `model`",
    ),
    _Option(
        "balance",
        "balance",
        BALANCE,
        "who decides which slots move between channels when some have more work than others; "
        "`static` moves none",
    ),
    _Option(
        "balance.sameBatch",
        "same_batch",
        _SAME_BATCH,
        "whether the rows of a batch are counted before they are routed, so that slots move in "
        "this batch and not in the next: where that saves more time than it takes, in every "
        "batch, or never",
    ),
    _Option(
        "balance.threshold",
        "balance_threshold",
        THRESHOLD,
        "how much more than the average a channel may have to do before `elasticutor` and `rc` "
        "move slots",
    ),
    _Option(
        "hotKeys",
        "hot_keys",
        _HOT_KEYS,
        "what becomes of keys that have much more work than others: they get slots of their own "
        "and, where operators can merge, several; slots of their own alone; or nothing",
        default="`split`; `off` with balance=static",
    ),
    _Option(
        "locality",
        "locality",
        _LOCALITY,
        "whether keys that occur together, in operators that follow each other, are brought to one "
        "host: `auto` does where there are several hosts, `off` counts nothing",
    ),
    _Option(
        "locality.period",
        "locality_period_batches",
        whole(2),
        "how many batches are counted before it is decided anew which key should be where",
    ),
    _Option(
        "locality.memory",
        "locality_memory_bytes",
        SIZE,
        "the memory of a task for the pairs of keys that it counts",
    ),
    _Option(
        "locality.every",
        "locality_every",
        whole(1),
        "one row in so many is counted, and stands for the others",
    ),
    _Option(
        "locality.imbalance",
        "locality_imbalance",
        THRESHOLD,
        "how much more than its part of an operator's load a host may get for the sake of locality",
    ),
    _Option(
        "locality.dryRun",
        "locality_dry_run",
        FLAG,
        "only write to the event log what would be done for locality",
    ),
    _Option(
        "hosts.zone",
        "zones",
        ZONES,
        "which hosts are near each other: keys that can't be on one host are brought to one zone",
        default="all are as far from each other",
    ),
    _Option(
        "windowBatches",
        "window_batches",
        whole(1),
        "over how many batches measurements are averaged: fewer follow spikes, more are calm",
    ),
    _Option(
        "executors",
        "executors",
        whole(1, MAX_CHANNELS),
        "into how many key ranges an operator's slots are divided at first, at most one per "
        "channel; each has channels of its own, and its slots stay on them",
    ),
    _Option(
        "executors.reviewBatches",
        "executors_review_batches",
        whole(1),
        "every so many batches, key ranges that have outgrown a host are split and small "
        "neighbours merged",
    ),
    _Option(
        "placement",
        "placement",
        _PLACEMENT,
        "on a cluster, whether channels run on the hosts that have their state; `naive` places "
        "them anew for every table, and `off` leaves it to Spark",
    ),
    _Option(
        "prefetch",
        "prefetch",
        FLAG,
        "on a cluster, whether a slot's state is brought to its next host before the batch that "
        "needs it there",
    ),
    _Option(
        "cluster.minExecutors",
        "executors_least",
        whole(1, MAX_CHANNELS),
        "the fewest of Spark's executors that the query holds, where it asks for them itself",
        default="1, with cluster.maxExecutors",
    ),
    _Option(
        "cluster.maxExecutors",
        "executors_most",
        whole(1, MAX_CHANNELS),
        "the most of Spark's executors that the query asks for, by the channels that it has; "
        "without it, it asks for none and releases none",
        default="as many as Spark gives",
    ),
    _Option(
        "takeover",
        "takeover",
        FLAG,
        "takes a checkpoint in an object store over from a query that may still be running; that "
        "one commits and publishes nothing more",
    ),
    _Option(
        "cut",
        "cut",
        FLAG,
        "whether a batch ends early in which one channel would run on long after the others: its "
        "rest comes first in the next batch, by a better table",
    ),
    _Option(
        "stopTimeout",
        "stop_timeout_s",
        SECONDS,
        "how long `stop()` waits for the running batch before it interrupts it",
    ),
)
_OF_OPERATOR = re.compile(r"operator\.(.+)\.channels\.(min|max)")
_CHANNELS = whole(1, MAX_CHANNELS)
_BY_NAME = {option.name.lower(): option for option in _TABLE}
_DEFAULTS = {each.name: each.default for each in fields(Options)}


def _contradictions(values: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """What is wrong with options that are each right; `names` is how they were written."""
    found = []
    least, most = values.get("channels_min", 1), values.get("channels_max", MAX_CHANNELS)
    if least > most:
        found.append(
            f"{names['channels_min']} is {least} and {names['channels_max']} is {most}: "
            "the least is not above the most."
        )
    for operator, fewest_of in values.get("operators_min", {}).items():
        most_of = values.get("operators_max", {}).get(operator, most)
        if fewest_of > most_of:
            found.append(
                f"braided.operator.{operator}.channels.min is {fewest_of}, and it may have "
                f"{most_of} at most: the least is not above the most."
            )
    start = values.get("channels", least)
    bounds = [n for n in ("channels_min", "channels_max") if n in values]
    if not least <= start <= most and least <= most:
        wrong = " and ".join(f"{names[n]} is {values[n]}" for n in bounds)
        found.append(f"{names['channels']} is {start}, but {wrong}: start within the bounds.")
    fewest, many = values.get("executors_least"), values.get("executors_most")
    if fewest is not None and (many is None or fewest > many):
        found.append(
            f"{names['executors_least']} is {fewest} and braided.cluster.maxExecutors is "
            f"{'not set' if many is None else many}: set it, to as many at least."
        )
    if many is not None and values.get("placement") == "off":
        found.append(
            f"{names['executors_most']} has the query ask for executors and release them, which "
            f"takes slots off them first: {names['placement']} can't be off."
        )
    if values.get("cut") and values.get("order_preserving"):
        found.append(
            f"{names['cut']} and {names['order_preserving']} contradict each other: rows that a "
            "batch leaves for the next one come after others that they belong before."
        )
    scale = values.get("scale", "model")
    if "latency_target_s" in values and scale != "model":
        found.append(
            f"{names['latency_target_s']} is what braided.scale=model keeps to; "
            f"{names['scale']} is {scale!r}. Leave one of them out."
        )
    balance = balance_policy(values.get("balance", "elasticutor"))
    if values.get("executors", 1) > 1 and not getattr(balance, "keeps_ranges", False):
        found.append(
            f"{names['executors']} is {values['executors']}, but {names['balance']} is "
            f"{values['balance']!r}, which knows no key ranges: braided.balance=elasticutor does, "
            "and a policy of your own that says `keeps_ranges = True`."
        )
    return found


def _unknown(written: str, prefix: str) -> str:
    name = written[len(prefix) :].lower()
    # A cutoff of 0 always finds one: the nearest, however far.
    [nearest] = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.0)
    known = ", ".join(sorted(prefix + option.name for option in _TABLE))
    return (
        f"There is no option {written}; the nearest is {prefix}{_BY_NAME[nearest].name}. "
        f"The options are: {known}."
    )
