"""`Operator` as users subclass it: fields, parameters, hooks, times.

What is wrong with a class is said when it is defined. It may use `store` for the types of fields,
and of Spark only rows and types: a class can be written, checked and tested without one that runs.
"""
