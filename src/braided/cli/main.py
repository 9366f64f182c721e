"""The command `braided`: demo, benchmarks, simulator, cluster, a look into a checkpoint.

What a command runs is imported when it runs, so that help and errors come at once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from braided.bench import BENCHES
from braided.errors import BraidedError, OptionError
from braided.sim import SCENARIOS

__all__ = ["main"]

_WITH_OWN_ARGUMENTS = {
    "demo": "braided.cli.demo",
    "cluster": "braided.cli.cluster",
    "doctor": "braided.cli.doctor",
    "kafka": "braided.cli.kafka",
}
_STATE = "braided.cli.show_state"
_IMPORT = "braided.cli.import_state"
_PLAN = "braided.cli.plan"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    try:
        try:
            return _command(argv)
        finally:
            sys.stdout.flush()  # also what help has printed, which ends the program
    except BraidedError as error:
        print(f"braided: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("braided: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Who reads has seen enough, as `head` has. What Python still flushes goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _command(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command not in _WITH_OWN_ARGUMENTS:
        parser.error(f"{arguments.command} does not take {' '.join(rest)}")
    return _run(arguments, rest)


def _run(arguments: argparse.Namespace, rest: list[str]) -> int:
    command = _WITH_OWN_ARGUMENTS.get(arguments.command)
    if command is not None:
        return int(importlib.import_module(command).main(rest) or 0)
    if arguments.command == "simulate":
        return _simulate(arguments)
    if arguments.command == "replay":
        return _replay(arguments)
    if arguments.command == "decisions":
        return _decisions(arguments)
    if arguments.command == "state":
        return int(importlib.import_module(_STATE).main(arguments))
    if arguments.command == "import-state":
        return int(importlib.import_module(_IMPORT).main(arguments))
    if arguments.command == "plan":
        return int(importlib.import_module(_PLAN).main(arguments))
    return _bench(
        arguments.name, as_json=arguments.json, quick=arguments.quick, only=arguments.only
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="braided", description="Stateful streams on Spark that reshape while they run."
    )
    parser.add_argument("--version", action="version", version=f"braided {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "demo",
        add_help=False,  # it explains its own arguments
        help="run an elastic pipeline on local Spark, about a minute",
    )
    commands.add_parser(
        "cluster", add_help=False, help="run a Spark cluster of several hosts on this machine"
    )
    commands.add_parser(
        "doctor", add_help=False, help="say what is missing for what, and how to install it"
    )
    commands.add_parser("kafka", add_help=False, help="run a Kafka broker on this machine")
    state = commands.add_parser(
        "state",
        help="show what a query's checkpoint holds",
        description="Shows the committed state of a query, which may be running.",
    )
    _state_arguments(state)
    decisions = commands.add_parser(
        "decisions",
        help="tell what a query's controller decided, why, and why not",
        description="Prints the decisions of a query, which may be running, the oldest first: with "
        "their reasons, what came of them, and what limits operators that would have other "
        "channels.",
    )
    decisions.add_argument("checkpoint", metavar="CHECKPOINT", help="its checkpointLocation")
    decisions.add_argument("--follow", action="store_true", help="go on as more come")
    decisions.add_argument("--json", action="store_true", help="a line of JSON each")
    imports = commands.add_parser(
        "import-state",
        help="bring the state of a native transformWithState into a new checkpoint",
        description="Reads a native query's checkpoint with Spark's state data source. The query "
        "of Braided's that is then started with the new checkpoint goes on from that state.",
    )
    _import_arguments(imports)
    plan = commands.add_parser(
        "plan",
        help="plan by rows of the past which keys should be on one host",
        description="Counts with Spark which keys occur together, and says which host each should "
        "be on. A query starts with what is written to DIR by .option('braided.routing', DIR).",
    )
    _plan_arguments(plan)
    bench = commands.add_parser(
        "bench",
        help="measure Braided against what Spark has",
        description="Runs a benchmark and its peer and shows both.",
        epilog="benchmarks:\n" + "\n".join(f"  {name:<12}{_about(name)}" for name in BENCHES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("name", metavar="NAME", type=_bench_name, help="one of those below")
    bench.add_argument("--json", action="store_true", help="end with one line of JSON")
    bench.add_argument("--quick", action="store_true", help="fewer batches, under three minutes")
    bench.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CASE",
        help="of scale: the cases of a trace, a kind of work or a policy, as sink or sink/saso",
    )
    _add_simulator(commands)
    return parser


def _add_simulator(commands: Any) -> None:
    simulate = commands.add_parser(
        "simulate",
        help="try policies on a simulated cluster",
        description="Runs a scenario, without Spark, and shows what the policies did.",
        epilog="scenarios:\n" + "\n".join(f"  {n:<14}{about}" for n, about in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    simulate.add_argument("scenario", metavar="SCENARIO", choices=tuple(SCENARIOS))
    simulate.add_argument("--seed", type=int, default=0, help="of all chance in it")
    replay = commands.add_parser(
        "replay",
        help="ask other policies what they would have done in a recorded run",
        description="Runs a query's event log through other policies, without Spark.",
    )
    replay.add_argument(
        "log", metavar="EVENTLOG", help="the file of events, or the checkpoint that has it"
    )
    replay.add_argument(
        "--max-channels", type=int, help="that a policy may take per operator; else the query's"
    )
    for parser, needed in ((simulate, False), (replay, True)):
        parser.add_argument(
            "--policy",
            action="append",
            default=[],
            required=needed,
            metavar="NAME",
            help="to scale or to balance with; twice for one of each",
        )
        parser.add_argument("--json", action="store_true", help="one line of JSON")
        parser.add_argument("--plot", metavar="FILE", help="an SVG file to draw it into")


def _simulate(arguments: argparse.Namespace) -> int:
    from braided.cli.simulate import simulate_command

    return simulate_command(
        arguments.scenario,
        arguments.policy,
        json=arguments.json,
        plot=arguments.plot,
        seed=arguments.seed,
    )


def _replay(arguments: argparse.Namespace) -> int:
    from braided.cli.simulate import replay_command

    return replay_command(
        arguments.log,
        arguments.policy,
        json=arguments.json,
        plot=arguments.plot,
        channels_max=arguments.max_channels,
    )


def _decisions(arguments: argparse.Namespace) -> int:
    from braided.cli.decisions import decisions_command

    return decisions_command(arguments.checkpoint, json=arguments.json, follow=arguments.follow)


def _state_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a query's checkpointLocation")
    parser.add_argument("--operator", metavar="NAME", help="one operator; all of them otherwise")
    parser.add_argument(
        "--version", metavar="N", type=int, help="a batch that is still retained; else the newest"
    )
    parser.add_argument("--to", metavar="PATH", help="write all keys there, as Parquet")
    parser.add_argument("--json", action="store_true", help="print all keys, a line of JSON each")


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("native", metavar="NATIVE", help="the native query's checkpointLocation")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="one that is not there yet")
    parser.add_argument(
        "--name", metavar="NAME", required=True, help="of the processor: its class, or .name(...)"
    )
    parser.add_argument(
        "--operator", metavar="ID", type=int, default=0, help="which stateful operator; else 0"
    )
    parser.add_argument("--slots", metavar="N", type=int, default=256, help="else 256")
    parser.add_argument(
        "--with-offsets",
        action="store_true",
        help="go on with the input where the native query stopped, with the same sources",
    )


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="ROWS",
        required=True,
        help="a table, or files of Parquet, JSON, CSV or ORC",
    )
    parser.add_argument(
        "--keys",
        required=True,
        metavar="A,B",
        help="the key columns of operators that follow each other; a+b for a key of two columns",
    )
    parser.add_argument("--hosts", metavar="N", type=int, required=True)
    parser.add_argument("--names", metavar="X,Y", help="of the operators; else of their columns")
    parser.add_argument("--out", metavar="DIR", help="where to write a Parquet file for each")
    parser.add_argument(
        "--imbalance", metavar="A", type=float, default=1.03, help="that hosts may have (1.03)"
    )
    parser.add_argument(
        "--pairs", metavar="N", type=int, default=1_000_000, help="the most that count (1,000,000)"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def _bench(name: str, *, as_json: bool, quick: bool, only: Sequence[str]) -> int:
    from braided.cli import report

    started = time.monotonic()
    # With --json, standard output is for a program and people read standard error.
    stream = sys.stderr if as_json else sys.stdout

    def progress(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", file=stream, flush=True)

    run: Callable[..., dict[str, object]] = importlib.import_module(BENCHES[name]).run
    chosen = {"only": only} if only else {}
    if chosen and "only" not in inspect.signature(run).parameters:
        raise OptionError(f"the benchmark {name} can't be run in part, so it takes no --only")
    result = run(quick=quick, progress=progress, **chosen)
    if as_json:
        print(report.as_json(result), flush=True)
    else:
        print("\n" + report.as_text(result), flush=True)
    return 0


def _bench_name(given: str) -> str:
    if given in BENCHES:
        return given
    near = difflib.get_close_matches(given.lower(), BENCHES, n=1)
    hint = f" did you mean {near[0]}?" if near else ""
    known = ", ".join(BENCHES)
    raise argparse.ArgumentTypeError(f"there is no benchmark {given!r};{hint} there are {known}")


def _about(name: str) -> str:
    """The first line of a benchmark's docstring, with which its file begins; imports nothing."""
    package = Path(__file__).parent.parent
    path = package.joinpath(*BENCHES[name].split(".")[1:]).with_suffix(".py")
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def _version() -> str:
    try:
        return importlib.metadata.version("braided")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
