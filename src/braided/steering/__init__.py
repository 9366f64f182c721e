"""The controller of a running query: a thread that feeds `control` and hands on what it says.

Reports become samples, options become policies, events become a log. It decides nothing itself, and
may use `control`, `options`, `tasks` and `flow`, but not the query that it steers.
"""
