"""A worker process of its own: does to its line what it reads, a JSON list per line, and answers.

The driver's address comes first. `fork` goes on in a child until the child is told to `end`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from braided.orders import line as lines
from braided.orders.address import LineAddress
from braided.orders.line import line_to
from braided.orders.messages import TaskWord

DEADLINE_S = 30.0


def main() -> None:
    lines.CONNECT_S = 60.0  # it comes to the driver however busy the machine is
    host, port, key = json.loads(sys.stdin.readline())
    address = LineAddress(host, port, bytes.fromhex(key))
    line_to(address)
    _say("ready")
    forked = False
    while text := sys.stdin.readline():
        verb, *words = json.loads(text)
        line = line_to(address)  # as each task does
        if verb == "fork":
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            forked = child == 0
            _say("child" if forked else "parent")
        elif verb == "end" and forked:
            os._exit(0)
        elif verb == "await_stop":
            _say(_becomes(lambda token=words[0], line=line: line.is_stopped(token)))
        elif verb == "tell":
            line.tell(TaskWord(*words))
            _say("told")
        else:
            _say(getattr(line, verb)(*words))


def _becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
