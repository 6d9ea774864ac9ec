"""Reads the slots' ads from a collector and prints them: ``python -m lark_controller.htcondor.ask COLLECTOR``.

A program of its own: HTCondor's bindings may wait as long as they like, and the caller ends this process.
The first line is the collector's start in seconds since 1970 (0: it does not say), each further line one ad as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from lark_controller.htcondor.slots import ATTRIBUTES


def main(collector: str) -> int:
    """Ask; 1 with a sentence on standard error where that fails."""
    import htcondor2

    try:
        connection = htcondor2.Collector(collector)
        began = _began(connection.query(htcondor2.AdType.Collector, projection=["MyCurrentTime", "StatsLifetime"]))
        ads = connection.query(htcondor2.AdType.Startd, projection=list(ATTRIBUTES))
    except (OSError, RuntimeError, ValueError, TypeError, htcondor2.HTCondorException) as error:
        print(f"the collector {collector} cannot be asked: {error}", file=sys.stderr)
        return 1
    print(began)
    for ad in ads:
        print(json.dumps(_values(ad)))
    return 0


def _began(ads: list[Mapping[str, Any]]) -> float:
    """The start of the collector; of several the one that started last."""
    starts = [
        ad["MyCurrentTime"] - ad["StatsLifetime"] for ad in ads if "MyCurrentTime" in ad and "StatsLifetime" in ad
    ]
    return max(starts, default=0)


def _values(ad: Mapping[str, Any]) -> dict[str, object]:
    """The attributes that are plain values; an expression is no reliable value."""
    plain: dict[str, object] = {}
    for name in ATTRIBUTES:
        value = ad.get(name)
        if isinstance(value, str | int | float):
            plain[name] = value
        elif isinstance(value, list):
            plain[name] = [item for item in value if isinstance(item, str)]
    return plain


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
