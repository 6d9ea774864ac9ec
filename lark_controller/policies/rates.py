"""Rates as people write them, in the policy and at the prompt: ``250Mbit``, ``1.5Gbit``, or a number of Mb/s.

Apart from what reads the policy, which loads HTCondor's library: that takes minutes where the host's own name does not
resolve, and no command of a client may wait for it.
"""

from __future__ import annotations

import re
from typing import Final

MEGABITS: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(kbit|Mbit|Gbit)?"
ACCEPTED_MEGABITS: Final = "more than 0 and at most 1000000 Mb/s, as 250Mbit, 1.5Gbit, 800kbit, or a number of Mb/s"
_UNITS: Final = {"kbit": 0.001, "mbit": 1.0, "gbit": 1000.0}


def megabits(text: str) -> float | None:
    """The megabits of ``250Mbit``, ``1.5Gbit``, ``800kbit`` or a plain number; None for anything else."""
    found = re.fullmatch(MEGABITS, text, re.IGNORECASE)
    value = float(found.group(1)) * _UNITS[(found.group(2) or "Mbit").lower()] if found is not None else 0.0
    return value if 0 < value <= 1_000_000 else None
