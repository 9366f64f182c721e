"""The state variables of a processor: values, lists and maps of the key that is open.

Each piece lies in the slot under a suffix of its own. It may use `store/slots` and what is below.
"""
