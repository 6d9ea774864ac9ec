"""``lark token``: one token, those of all workers, or the list of what there is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lark_common.errors import SettingError
from lark_controller.cli import printing
from lark_controller.cli.text_files import read_text
from lark_controller.rest.token_files import SUFFIX, add_workers, hosts_in, write_secret
from lark_controller.rest.tokens import Scope, Token, add_all, read
from lark_controller.settings import table

EVERY_HOST: Final = "every host"


def run(arguments: argparse.Namespace) -> int:
    """Make an API token, print it once, store its hash; or make those of all workers, each in a file; or list them."""
    chosen = [name for name in ("name", "workers", "list") if getattr(arguments, name)]
    if len(chosen) != 1:
        raise SettingError("accepted: lark token NAME --scope SCOPE, lark token --workers FILE, or lark token --list")
    path = arguments.file or Path(os.environ.get("LARK_TOKENS_FILE") or _default("tokens_file"))
    if arguments.list:
        return _list(path, arguments.json)
    return _one(path, arguments) if arguments.name else _workers(path, arguments)


def _one(path: Path, arguments: argparse.Namespace) -> int:
    if not arguments.scope:
        raise SettingError("--scope is needed: hook, read, operate, self or gateway")
    if arguments.directory or (arguments.owner and not arguments.output):
        raise SettingError("--directory goes with --workers, --owner with --output or --workers")
    scopes = {Scope(word) for word in arguments.scope}

    def keep(made: Mapping[str, str]) -> None:
        # Before the hash: a token that nobody has would keep its name from the next try.
        if arguments.output:
            write_secret(arguments.output, made[arguments.name], arguments.owner)

    named = {arguments.name: arguments.host}
    secret = add_all(path, named, scopes, arguments.expires, keep, arguments.user)[arguments.name]
    shown = {"file": str(path), "output": str(arguments.output)} if arguments.output else {"file": str(path)}
    if arguments.json:
        printing.json_out({"name": arguments.name, "token": None if arguments.output else secret, **shown})
    elif not arguments.output:
        print(secret)
    if not arguments.json:
        where = (
            f"the token itself is in {arguments.output}" if arguments.output else "the token itself is shown this once"
        )
        print(f"Its hash is in {path}; {where}.", file=sys.stderr)
    if "hook" in arguments.scope and not arguments.host:
        print(f"It is good for {EVERY_HOST}: whoever has it acts for all jobs. --host binds it.", file=sys.stderr)
    return 0


def _workers(path: Path, arguments: argparse.Namespace) -> int:
    if not arguments.directory:
        raise SettingError("--workers needs --directory, where the tokens are put")
    if arguments.scope not in (None, ["hook"]) or arguments.host or arguments.user or arguments.output:
        raise SettingError("--workers makes tokens with the scope hook, each for its own host, in --directory")
    hosts = hosts_in(read_text(arguments.workers))
    made = add_workers(path, hosts, arguments.directory, arguments.owner, arguments.expires)
    if arguments.json:
        printing.json_out({"made": list(made), "directory": str(arguments.directory), "file": str(path)})
    else:
        names = f"HOST{SUFFIX}; hashes are in {path}"
        known = len(hosts) - len(made)
        if len(made) == 1:
            print(f"1 token in {arguments.directory}, in {names}.")
        else:
            print(f"{len(made)} tokens in {arguments.directory}, each in {names}.")
        if known:
            have = printing.several(known, "host has", "hosts have")
            print(f"{have} one already; remove {'its line' if known == 1 else 'their lines'} to make others.")
    return 0


def _list(path: Path, as_json: bool) -> int:
    found = read(path)
    if as_json:
        printing.json_out(
            [
                {
                    "name": token.name,
                    "scopes": sorted(map(str, token.scopes)),
                    "hosts": token.hosts,
                    "user": token.user,
                    "every_host": token.is_good_for_every_host,
                    "expires": None if token.expires is None else _day(token.expires),
                    "expired": _is_over(token),
                }
                for token in found
            ]
        )
        return 0
    printing.table(
        ("TOKEN", "SCOPES", "GOOD FOR", "EXPIRES"),
        [(token.name, ", ".join(sorted(map(str, token.scopes))), _good_for(token), _end(token)) for token in found],
    )
    return 0


def _good_for(token: Token) -> str:
    if token.is_good_for_every_host:
        return EVERY_HOST
    if token.user is not None:
        return f"jobs of {token.user}"
    return "" if token.hosts is None else ", ".join(token.hosts)


def _end(token: Token) -> str:
    if token.expires is None:
        return "never"
    return f"{_day(token.expires)}{' (has expired)' if _is_over(token) else ''}"


def _is_over(token: Token) -> bool:
    return token.expires is not None and token.expires <= datetime.now(UTC).timestamp()


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _default(name: str) -> str:
    return next(row.default for row in table() if row.name == name)
