"""Each benchmark with its peer, in one run; `braided bench NAME` finds them here.

A benchmark is a module with a one-line docstring, which `braided bench --help` shows, and
`run(quick: bool, progress: Callable[[str], None]) -> dict`, whose result is plain values. Modules
are named and not imported, so that asking for help does not start Spark. They run Braided as a user
does. To set a scene, or to see what users are not shown, some also reach below: they pin keys by
`flow` and `control`, ask `spark` for executors and bytes, or run parts alone, such as `control`
in `sim`, the pairs of `tasks`, and the commit of `query` with reports of tasks that never ran.
"""

__all__ = ["BENCHES"]

BENCHES = {
    "stateful": "braided.bench.stateful",
    "floor": "braided.bench.floor",
    "rescale": "braided.bench.rescale",
    "state-size": "braided.bench.state_size",
    "memory": "braided.bench.memory",
    "store": "braided.bench.store",
    "agg": "braided.bench.agg",
    "scheduler": "braided.bench.scheduler",
    "processor": "braided.bench.processor",
    "skew": "braided.bench.skew",
    "surge": "braided.bench.surge",
    "scale": "braided.bench.scale",
    "hosts": "braided.bench.hosts",
    "locality": "braided.bench.locality",
    "cut": "braided.bench.cut",
    "migrate": "braided.bench.migrate",
    "routing": "braided.bench.routing",
    "kafka": "braided.bench.kafka",
}
