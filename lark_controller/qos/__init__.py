"""Guarantees, queues and meters of accounting groups. Pure calculation."""
