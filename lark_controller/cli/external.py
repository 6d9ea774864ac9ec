"""``lark external``: addresses at which jobs are reached from outside of the site."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from lark_controller.cli import printing
from lark_controller.cli.commands import OK, connected


def add(arguments: argparse.Namespace) -> int:
    """Give a job an external address; it keeps the one that it has."""
    client = connected(arguments)
    found = client.associate_external_address(
        arguments.job,
        arguments.open,
        arguments.seconds,
        family=arguments.family,
        name=arguments.name,
        reservation=arguments.reservation,
    )
    return _one(arguments, found)


def show(arguments: argparse.Namespace) -> int:
    """List the external addresses of live jobs, and what is left in each pool."""
    client = connected(arguments)
    found = {"addresses": list(client.external_addresses(arguments.job)), "pools": client.external_pools()}
    if arguments.json:
        printing.json_out(found)
        return OK
    _addresses(found["addresses"])
    print()
    rows = [(each["name"], each["total"], each["used"], each["quarantined"], each["free"]) for each in found["pools"]]
    printing.table(("POOL", "ADDRESSES", "USED", "RESTING", "FREE"), rows)
    return OK


def status(arguments: argparse.Namespace) -> int:
    """Show what was given under an id, also when it is over."""
    return _one(arguments, connected(arguments).external_address(arguments.id))


def release(arguments: argparse.Namespace) -> int:
    """Release an external address; nothing changes where that is done already."""
    return _one(arguments, connected(arguments).release_external_address(arguments.id))


def _one(arguments: argparse.Namespace, found: dict[str, Any]) -> int:
    if arguments.json:
        printing.json_out(found)
    else:
        _addresses([found])
    return OK


def _addresses(found: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            each["id"],
            each["address"],
            _name(each),
            each["pool"],
            each["job_name"] or each["job"],
            each["owner"],
            " ".join(each["open"]),
            each["state"] if not each["reason"] or each["released"] else f"{each['state']}: {each['reason']}",
            _until(each),
        )
        for each in found
    ]
    printing.table(("ID", "ADDRESS", "NAME", "POOL", "JOB", "OWNER", "OPEN", "STATE", "UNTIL"), rows)


def _until(found: dict[str, Any]) -> str:
    if found["released"]:
        return f"over: {found['why']}"
    # A controller before this version does not name the reservation.
    return found["until"] or ("its reservation ends" if found.get("reservation") else "its job ends")


def _name(found: dict[str, Any]) -> str:
    """The name, with the reason where it is not yet as it is to be."""
    if not found["name"] or found["name_state"] == "removed":
        return "-"
    reason = f": {found['name_reason']}" if found["name_reason"] else ""
    return str(found["name"]) + ("" if found["name_state"] == "registered" else f" ({found['name_state']}{reason})")
