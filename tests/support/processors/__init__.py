"""Scenarios of StatefulProcessors, and what runs them: natively, on Braided and without Spark."""
