"""`braided kafka`: a Kafka broker on this machine in the foreground, to try programs on."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from braided.bench.kafka_broker import KafkaBroker, connector_jars, missing, serve
from braided.cli.asked_to_end import asked_to_end

__all__ = ["explain", "main"]

_PORT = 9092


def main(argv: Sequence[str]) -> int:
    """Runs a broker until it is asked to end, by Ctrl-C or by SIGTERM."""
    arguments = _parser().parse_args(argv)
    lacking = missing()
    if lacking is not None:
        print(f"braided: {lacking}", file=sys.stderr)
        return 1
    print(f"Starting a Kafka broker on port {arguments.port} of loopback ...", flush=True)
    try:
        with (
            asked_to_end() as asked,
            tempfile.TemporaryDirectory(prefix="braided-kafka-", ignore_cleanup_errors=True) as d,
            serve(Path(d), arguments.port, makes_topics=True) as broker,
        ):
            print(explain(broker), flush=True)
            asked.wait()
            print("\nStopping ...", flush=True)
    except RuntimeError as error:
        print(f"braided: {error}", file=sys.stderr)
        return 1
    print("Stopped; its topics are gone.", flush=True)
    return 0


def explain(broker: KafkaBroker) -> str:
    """What a person needs to know of a broker that runs."""
    return "\n".join(
        [
            f"\nA Kafka broker runs at {broker.address}. It makes topics when they are first used.",
            "\nA program reads from it and writes to it with these settings:\n",
            "  settings = {",
            '    "spark.jars": ",".join([',
            *[f'      "{jar}",' for jar in connector_jars()],
            "    ]),",
            "  }",
            "  spark = SparkSession.builder.config(map=settings).getOrCreate()",
            '  rows = spark.readStream.format("kafka").option("subscribe", "orders").option(',
            f'      "kafka.bootstrap.servers", "{broker.address}").load()',
            "\nCtrl-C stops the broker; its topics go with it.",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="braided kafka",
        description="Runs a Kafka broker until Ctrl-C: one node, on loopback only. "
        "scripts/kafka.sh installs it.",
    )
    parser.add_argument("--port", type=int, default=_PORT, help=f"where it listens ({_PORT})")
    return parser
