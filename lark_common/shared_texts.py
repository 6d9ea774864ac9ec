"""Equal texts of different origin as one object: jobs, ports and databases repeat the same words many thousand times.

Not ``sys.intern``, which some releases of Python (3.12.0 to 3.12.6) keep for as long as the process runs: a database or
a switch that sends ever other words would fill the memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Texts that are kept for that, the ones used last, and the characters of each at most.
MOST: Final = 1 << 15
LONGEST: Final = 128


def shared(text: str) -> str:
    """An equal text, for most callers the same object; a long one is itself."""
    return _kept(text) if len(text) <= LONGEST else text


@lru_cache(maxsize=MOST)
def _kept(text: str) -> str:
    return text
