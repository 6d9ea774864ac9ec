"""``lark join``: the tokens by which workers join."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from lark_common.errors import SettingError
from lark_controller.cli import printing
from lark_controller.cli.commands import OK, connected
from lark_controller.cli.text_files import read_text
from lark_controller.rest.token_files import hosts_in


def add(arguments: argparse.Namespace) -> int:
    """Make a token by which workers join, each of these hosts once, and print it this once."""
    listed = hosts_in(read_text(arguments.hosts)) if arguments.hosts else ()
    named = hosts_in("\n".join(arguments.host)) if arguments.host else ()
    hosts = tuple(dict.fromkeys((*listed, *named)))
    if not hosts:
        raise SettingError("accepted: lark join add HOST …, or lark join add --hosts FILE with a host a line")
    made = connected(arguments).add_join_token(hosts, arguments.expires)
    if arguments.json:
        printing.json_out(made)
        return OK
    print(made["token"])
    shown = hosts[0] if len(hosts) == 1 else f"each of {len(hosts)} hosts"
    print(
        f"It is good for {shown} once, until {made['expires_at'][:16].replace('T', ' ')} UTC, and is shown this once. "
        "On the worker:\n  lark-worker setup --controller URL --join TOKEN --interface INTERFACE",
        file=sys.stderr,
    )
    return OK


def show(arguments: argparse.Namespace) -> int:
    """List the join tokens that are good, and who has joined by each."""
    return _listed(connected(arguments).join_tokens(), as_json=arguments.json)


def remove(arguments: argparse.Namespace) -> int:
    """Take a join token out of force; workers that have joined by it stay."""
    return _listed(connected(arguments).remove_join_token(arguments.id), as_json=arguments.json)


def workers(arguments: argparse.Namespace) -> int:
    """List the workers whose tokens are good because they have joined."""
    return _workers(connected(arguments).joined_workers(), as_json=arguments.json)


def revoke(arguments: argparse.Namespace) -> int:
    """Refuse the token of a worker that has joined, at every controller; list those that are left."""
    return _workers(connected(arguments).revoke_joined_worker(arguments.host), as_json=arguments.json)


def _workers(found: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        printing.json_out(found)
        return OK
    rows = [
        (each["host"], each["joined_at"][:19], each["joined_from"] or "", each["join_token"] or "") for each in found
    ]
    printing.table(("HOST", "JOINED", "FROM", "BY"), rows)
    return OK


def _listed(found: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        printing.json_out(found)
        return OK
    rows = [
        (token["id"], token["expires_at"][:16], each["host"], (each["joined_at"] or "")[:19], each["joined_from"] or "")
        for token in found
        for each in token["hosts"]
    ]
    printing.table(("ID", "EXPIRES", "HOST", "JOINED", "FROM"), rows)
    return OK
