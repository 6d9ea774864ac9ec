"""Fuzzers: one border a module in ``borders``, its corpus in ``corpus/BORDER``; ``python -m tests.fuzz --help``.

A border's module has

- ``run(data: bytes) -> None``: gives the border one input; raises where the border does not keep what it promises.
  What a border refuses in its own words (AdError, PolicyError, …) is no failure: ``run`` catches it.
- ``DICTIONARY: tuple[bytes, ...]``: pieces of the border's language, which inputs are made of.
- ``MAX_BYTES: int``: the longest input worth trying.

``run`` is called some 10⁵ times a second, in one process: no sleep, no file, no thread that stays behind, no state that
grows. What is costly (a parser, a loop) is made when the module is imported.
"""
