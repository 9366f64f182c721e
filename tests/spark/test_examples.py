"""Examples of Spark's own processors and of columnar operators run bare and print what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bare import INCUBATOR, finish, repository, start

PRINTED = {
    # The first one's session is everybody's, and this one has three channels.
    "order_matching.py": (
        "ACME: cat buys 50 from ben at 10.2",
        "ACME: cat buys 70 from ann at 10.5",
        "WIND: cat buys 20 from ann at 2.5",
    ),
    "sessionisation.py": (
        "ada came at 09:00 and stayed 20 minutes: 4 clicks, mostly on /boats",
        "bob came at 09:05 and stayed 20 minutes: 2 clicks, mostly on /home",
        "cyd came at 10:11 and stayed 0 minutes: 1 clicks, mostly on /home",
        "cyd came at 11:30 and stayed 0 minutes: 1 clicks, mostly on /boats",
    ),
    "deduplication.py": ("10 messages came, 4 were new:", "  valve  2  open"),
    "top_n.py": (
        "batch 0  Oslo: 1. rope (9), 2. oar (5), 3. map (2)",
        "batch 2  Oslo: 1. sail (12), 2. rope (9), 3. oar (5)",
        "batch 2  Bonn: 1. oar (5), 2. rope (3), 3. map (1)",
    ),
    "fraud_rules.py": (
        "card 4711 at 12:00:40: 899.00 came 40 s after 0.50",
        "card 1234 at 12:08:00: paid in BR, DE, FR within ten minutes",
    ),
    "anomalies.py": (
        "batch 2: sensor 42 says 93, 55 sigma",
        "batch 4: sensor 7 is silent, its mean was 7",
    ),
    "online_regression.py": (
        "batch 3: 500 models, the worst has an error of 0.119",
        "batch 3: shop 23 has [3.0, -2.0, 2.0, 1.0]",
    ),
}


ALL = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"


@pytest.mark.slow
def test_the_examples_print_what_they_promise(tmp_path: Path) -> None:
    paths = " ".join(f"examples/{name}" for name in PRINTED)
    python = start(f'.venv/bin/python -c "{ALL}" {paths}', repository(tmp_path))
    printed, noise = finish(python)  # in one process, which makes one session for all of them
    for name, promised in PRINTED.items():
        assert [line for line in promised if line not in printed] == [], (name, printed)
    assert noise == INCUBATOR
