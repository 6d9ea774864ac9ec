"""The output of ``lark map``: the network as two tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lark_controller.cli import printing

Answer = Mapping[str, Any]


def show(found: Answer) -> None:
    """Print switches with their load, then which users reach each other and the WAN."""
    wan = found["wan"]
    rows: list[tuple[object, ...]] = [("WAN", "", "", *_load(wan["rate"], "wan_"), _capacity(wan))]
    for each in found["cores"]:
        name = each["name"] or each["datapath"]
        rows.append((name, _state(each), "", "", "", ""))
        rows += [(f"{name} {port['name']}", _link(port), "", *_load(port), _capacity(port)) for port in each["ports"]]
    for each in found["edges"]:
        name = each["name"] or each["datapath"]
        rows.append((name, _state(each), each["jobs"], *_load(each["rate"]), _capacity(each)))
    rows += [
        (f"{each['switches']} more", _state(each), each["jobs"], *_load(each["rate"]), "") for each in found["rest"]
    ]
    printing.table(("SWITCH", "STATE", "JOBS", "OUT", "IN", "MBIT/S"), rows)
    parties = found["parties"]
    if not parties:
        return
    print()
    printing.table(
        ("FROM", "JOBS", "WAN", *(f"TO {each['owner']}" for each in parties)),
        [(each["owner"], each["jobs"], each["wan"], *each["reaches"]) for each in parties],
    )
    if found["other_owners"]:
        jobs, users = (
            printing.several(found[f"other_{each}"], word) for each, word in (("jobs", "job"), ("owners", "other user"))
        )
        print(f"… and {jobs} of {users}")


def _state(switch: Answer) -> str:
    if not switch["connected"]:
        return "away"
    return "in sync" if switch["in_sync"] else "not in sync"


def _link(port: Answer) -> str:
    return f"{'WAN' if port['wan'] else 'site'}, {'up' if port['up'] else 'down'}"


def _load(rate: Answer, part: str = "") -> tuple[str, ...]:
    """Out and in; empty where a port was not read twice yet."""
    return tuple("" if (known := rate[part + way]) is None else f"{known:.1f}" for way in ("outward", "inward"))


def _capacity(link: Answer) -> str:
    # A port of a core has its own speed in each direction.
    together = " together" if link.get("shared") else ""
    return "" if link["capacity"] is None else f"{link['capacity']:g}{together}"
