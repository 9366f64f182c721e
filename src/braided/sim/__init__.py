"""A cluster to try policies on: seeded, deterministic, and without Spark.

`braided simulate NAME` runs one of the scenarios named here; `braided.sim.scenarios` has them. It
may use `control` alone, whose loop it runs as a query does.
"""

__all__ = ["SCENARIOS"]

SCENARIOS = {
    "saso-step": "a parallel region under steps of load (Gedik et al. B.2)",
    "saso-sine": "a parallel region under a sine of load (Gedik et al. B.2)",
    "saso-remote": "a parallel region that is held up by what comes after it",
    "zipf-shuffle": "32 hosts x 8 cores, 8,192 slots, zipf keys shuffled twice a minute",
    "hotspot": "half of all rows on a few keys, others every 30 seconds (AutoFlow IV)",
    "surge": "four times the load for 20 seconds, and back",
    "noise-32": "32 hosts, constant load with 30 % of noise in what arrives",
    "double-32": "32 hosts, twice the load for 45 seconds",
    "tenfold-32": "32 hosts, ten times the load for 45 seconds",
    "sink-32": "32 hosts, and a sink that takes less than half of what is offered",
    "key-32": "32 hosts, and one key with as much as a channel can do",
    "timers-32": "32 hosts, most of the work by timers in slots without rows",
    "sine-32": "32 hosts under a sine of load",
    "steps-32": "32 hosts under steps of load, up and down",
    "locality": "keys that occur together brought together, on 1 to 64 hosts (Caneill et al.)",
    "chain": "three operators, one after the other, under a sine of load",
}
