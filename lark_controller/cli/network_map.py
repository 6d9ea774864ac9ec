"""The output of ``lark map``: the network as two tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lark_controller.api.switches import AWAY
from lark_controller.cli import printing, traffic_tables

Answer = Mapping[str, Any]
# The name in the place of a switch's.
_ALL: Final = "all jobs to the WAN"


def show(found: Answer) -> None:
    """Print switches with their load, then which users reach each other and the WAN."""
    wan = found["wan"]
    rows: list[tuple[object, ...]] = [(_ALL, "", "", *_load(wan["rate"], "wan_"), _capacity(wan))]
    for each in found["cores"]:
        name = each["name"] or each["datapath"]
        rows.append((name, each["state"], "", "", "", ""))
        rows += [
            (f"{name} {port_names(port)}", _link(port), "", *_load(port), _capacity(port)) for port in each["ports"]
        ]
    for each in found["edges"]:
        name = each["name"] or each["datapath"]
        rows.append((name, each["state"], each["jobs"], *_rate(each), _capacity(each)))
    rows += [(f"{each['switches']} more", each["state"], each["jobs"], *_rate(each), "") for each in found["rest"]]
    printing.table(("SWITCH", "STATE", "JOBS", "OUT", "IN", "MBIT/S"), rows)
    if found["cores"]:
        print(f"{_ALL}: by the jobs' last counters; a core's ports: all that passes them, read at another moment")
    traffic_tables.say_uncounted("what is sent and received by", found.get("uncounted") or 0)
    traffic_tables.say_unread("what is sent and received by", found.get("unread") or 0)
    parties = found["parties"]
    if not parties:
        return
    print()
    printing.table(
        ("FROM", "JOBS", "WAN", *(f"TO {each['owner']}" for each in parties)),
        [
            # A single job has no other of its user's to reach.
            (
                each["owner"],
                each["jobs"],
                each["wan"],
                *("–" if at == own and each["jobs"] < 2 else word for at, word in enumerate(each["reaches"])),
            )
            for own, each in enumerate(parties)
        ],
    )
    for each in parties:
        # A controller of an earlier release gives no reason.
        if why := each.get("wan_reason"):
            print(f"{each['owner']} to the WAN: {each['wan']}, as {why}")
    if found["other_owners"]:
        jobs, users = (
            printing.several(found[f"other_{each}"], word) for each, word in (("jobs", "job"), ("owners", "other user"))
        )
        print(f"… and {jobs} of {users}")


def port_names(port: Answer) -> str:
    """A port by its name in the policy, and by that of its interface where it is another."""
    # A controller of an earlier release tells one of them.
    declared, interface = port.get("declared") or port["name"], port.get("interface") or port["name"]
    return declared if declared == interface else f"{declared} ({interface})"


def _link(port: Answer) -> str:
    return f"{'WAN' if port['wan'] else 'site'}, {'up' if port['up'] else 'down'}"


def _rate(worker: Answer) -> tuple[str, ...]:
    """Out and in of a worker's jobs; empty where its switch is away and cannot tell."""
    return ("", "") if worker["state"] == AWAY else _load(worker["rate"])


def _load(rate: Answer, part: str = "") -> tuple[str, ...]:
    """Out and in; empty where a port was not read twice yet."""
    return tuple("" if (known := rate[part + way]) is None else f"{known:.1f}" for way in ("outward", "inward"))


def _capacity(link: Answer) -> str:
    # A port of a core has its own speed in each direction.
    together = " together" if link.get("shared") else ""
    return "" if link["capacity"] is None else f"{link['capacity']:g}{together}"
