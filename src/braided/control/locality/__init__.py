"""Locality: which keys of operators that follow each other should live on the same host.

Statistics of pairs come in, a key's host and slot go out, together with what that will bring and
cost. It follows Caneill et al. (Middleware 2016) and, as all of `control`, knows no Spark, clock or
unseeded chance.
"""
