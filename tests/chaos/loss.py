"""Packets that are lost on the way: all of TCP on the loopback device, in a network namespace of its own."""

from __future__ import annotations

import subprocess
from typing import Final

# How many of a hundred packets are lost, at least and at most.
LEAST: Final = 5
MOST: Final = 30
_RULES: Final = """
table inet chaos {{
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "lo" meta l4proto tcp numgen random mod 100 < {lost} drop
  }}
}}
"""


class Loss:
    """Losses that begin and end; a packet on a way through two sockets may be lost twice."""

    def begin(self, chosen: float) -> None:
        """Lose a part of all packets, for a number from 0 to 1."""
        rules = _RULES.format(lost=round(LEAST + chosen * (MOST - LEAST)))
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)

    def end(self) -> None:
        """Let all packets pass."""
        subprocess.run(["nft", "delete", "table", "inet", "chaos"], check=True)
