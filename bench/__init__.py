"""Lark's own benchmarks: ``python -m bench`` (docs/benchmarks.md has what is measured and how)."""
