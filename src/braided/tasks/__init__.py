"""What every task has, whatever its kind: its channel, rows in and out, carry, report, failure.

Stages, which put tasks into a plan, and the hidden columns that plan and task agree on are here as
well. It may use `store`, the tables of `control`, `orders` and `spark`, but knows no flow and no
kind of step.
"""
