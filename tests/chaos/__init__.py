"""Faults together: a seeded schedule of faults against the running whole, and a checker that is none of its parts.

``python -m tests.chaos --help``; docs/design/chaos.md says what is thrown and what is checked.
"""
