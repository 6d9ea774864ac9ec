"""Lark's own benchmarks: ``python -m bench`` (methods and figures: docs/benchmarks.md)."""
