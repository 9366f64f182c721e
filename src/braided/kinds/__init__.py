"""The kinds of keyed steps: operators, processors, aggregates, a folder each.

A kind fulfils `KeyedStep` of `flow/step.py` with a step, a stage, a task, a run and a program. It
may use `flow`, `tasks`, `operator` and what is below them; nobody but `api`, `inspect` and the
tests asks which kind a step is.
"""
