"""A query that is made to be killed, its runs, and what they should have made."""
