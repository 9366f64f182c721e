"""A cluster to try policies on: seeded, deterministic, and without Spark."""
