"""The source papers' experiments, run again in the lab: ``python -m experiments``."""
