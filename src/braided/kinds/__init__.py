"""The kinds of keyed steps: operators, columnar ones, processors, aggregates, a folder each.

A kind fulfils `KeyedStep` of `flow/step.py` with a step, a stage, a task, a run and a program. It
may use `flow`, `tasks`, `operator` and what is below them. Who names a kind: `api`, which makes the
steps, `inspect`, which reads their state, `import_state`, which brings some along, `testing` and
`cli`, and `steering` and `worker_daemon`, which have workers import a task before they need it.
Nobody else asks which kind a step is.
"""
