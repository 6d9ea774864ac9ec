"""The parts of the ``ovs`` library that are used here, imported without eventlet.

The library looks for eventlet, which os-ken brings along, to learn whether it has replaced :mod:`select`. It replaces
nothing here, it warns of itself, and a start would wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Let a module that nobody has imported be missing for a while."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # Python's word for a module that cannot be imported
    try:
        yield
    finally:
        del sys.modules[name]


with _without("eventlet"):
    from ovs import json, timeval
    from ovs.jsonrpc import Message, Session
    from ovs.stream import Stream

__all__ = ["Message", "Session", "Stream", "json", "timeval"]
