"""Lark's own benchmarks: ``python -m bench`` (docs/benchmarks.md says what is measured and how)."""
