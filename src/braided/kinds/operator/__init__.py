"""The kind of step that an `Operator` class makes.

A task lends one instance to key after key and keeps their records (`store/records`). It uses
none of the other kinds.
"""
