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
    "chain": "three operators, one after the other, under a sine of load",
}
