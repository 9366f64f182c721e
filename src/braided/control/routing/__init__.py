"""Routing tables as values, and everything that makes a new one of an old one.

Rescaling, balancing, pinning, executors and their hosts, the hash ring. It is the lowest part of
`control`: functions of tables and loads that know neither samples nor policies.
"""
