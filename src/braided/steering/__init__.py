"""What changes a running query: its controller, in a thread of its own, and commands of users.

Reports become samples, options become policies, what `control` says becomes proposals and a log.
It decides nothing itself. It may use `hosts`, `control`, `options`, `flow`, `tasks`, `orders`,
`spark`, `store` and, to start workers before they are needed, the task of a kind of `kinds`, but
not the query that it steers.
"""
