"""The chaos run: faults by a seed against a flow on a real cluster and a real object store."""
