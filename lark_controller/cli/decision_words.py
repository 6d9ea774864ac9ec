"""The policy's decision for a job in a few words, and whose confirmation it has or waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Answer = Mapping[str, Any]
# Jobs of these networks are at no switch: their worker enforces the policy.
_RULED: Final = ("bridge", "nat")


def waited_for(waiting: Answer, job: Answer) -> str:
    """One thing that a job waits for. Where a job has a port on a switch and waits for none that is known, the reason
    names what it is: a gateway, say."""
    at = waiting["datapath"] or (f"worker {job['host']}" if job["network_type"] in _RULED else "")
    return f"{at}: {waiting['reason']}" if at else str(waiting["reason"])


def confirmed(found: Answer) -> list[str]:
    """The switches that have confirmed a job, and its worker where that enforces the policy for it."""
    ruled = found["network_type"] in _RULED and found["state"] not in ("ended", "refused")
    waits = any(not each["datapath"] for each in found["waiting"])
    return [*([f"worker {found['host']}"] if ruled and not waits else []), *found["confirmed"]]


def _bandwidth(bandwidth: Answer, asked: float | None) -> str:
    """The meaning of a bandwidth rule for a job that requests so much."""
    rate = asked or bandwidth["default"]
    if not rate:
        return "no bandwidth requested"
    counted = rate if bandwidth["maximum"] is None else min(rate, bandwidth["maximum"])
    if bandwidth["mode"] == "cap":
        return f"{counted:g} Mb/s at most"
    if bandwidth["ceiling"] is not None and counted > bandwidth["ceiling"]:
        return f"{bandwidth['ceiling']:g} Mb/s guaranteed (its ceiling, of {counted:g} requested)"
    return f"{counted:g} Mb/s guaranteed"


def words(decision: Answer, job: Answer) -> str:
    """The policy's decision for a job."""
    if job["network_type"] == "none":
        return "outside of it: the job has no network, and nothing passes whatever the rules"
    said = [word for word, true in (("quarantined", decision["quarantine"]), ("blocked", decision["blocked"])) if true]
    if decision["slice"]:
        said.append(f"slice {decision['slice']['value']}")
    if decision["wan"]:
        # A controller before this version does not name what a rule does.
        does = next((each.get("does") for each in decision.get("because", ()) if each["kind"] == "wan"), "")
        said.append(f"WAN rule {decision['wan']}{f' ({does})' if does else ''}")
    said += [f"no {way} connections" for way in ("inbound", "outbound") if not decision[way]]
    if job["network_type"] == "nat" and decision["inbound"]:
        said.append("inbound connections from behind its worker's NAT alone")
    if bandwidth := decision["bandwidth"]:
        said.append(_bandwidth(bandwidth, job["bandwidth"]))
    if decision["group"]:
        said.append(f"group {decision['group']}")
    # A controller before this version has none.
    if mark := decision.get("scitag"):
        said.append(f"SciTag {mark['experiment']}, {mark['activity']}")
    return ", ".join(said) or "nothing special"
