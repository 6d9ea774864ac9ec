"""``lark setup``: what a new site needs on the controller's host, and for its workers, in one command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lark_common.errors import SettingError
from lark_controller.cli import own_name, printing
from lark_controller.cli.setup import texts
from lark_controller.cli.setup.files import File, make_directory, own, service_user
from lark_controller.cli.setup.holders import SOON, Outcome, Pair
from lark_controller.cli.setup.next_steps import Step, steps
from lark_controller.cli.setup.plan import OPERATOR, WORKER_TOKEN, Plan, Request, plan, worker_place
from lark_controller.cli.text_files import read_text
from lark_controller.rest.joins import certificates
from lark_controller.rest.token_files import SUFFIX, hosts_in
from lark_controller.rest.tokens import Scope, add_all


def run(arguments: argparse.Namespace) -> int:
    """Make what is missing, and show what was made and what to do next. Raises LarkError with nothing written."""
    request = _request(arguments)
    planned = plan(request)
    if planned.changes:
        _write(request, planned)
    warnings = tuple(_warnings(request, planned))
    todo = steps(request, planned)
    if arguments.json:
        printing.json_out(_document(request, planned, warnings, todo))
    else:
        _print(request, planned, warnings, todo)
    return 0


def _request(arguments: argparse.Namespace) -> Request:
    if (arguments.ca_cert is None) != (arguments.ca_key is None):
        raise SettingError("--ca-cert and --ca-key: accepted only together")
    listed = hosts_in(read_text(arguments.workers)) if arguments.workers else ()
    named = hosts_in("\n".join(arguments.worker)) if arguments.worker else ()
    gateways, nameservers = tuple(arguments.gateways or ()), tuple(arguments.nameservers or ())
    if len({each.version for each in gateways}) != len(gateways):
        raise SettingError("--gateways: accepted: at most one for IPv4 and one for IPv6")
    return Request(
        names=tuple(dict.fromkeys(arguments.name)),
        addresses=tuple(dict.fromkeys(arguments.address or ())),
        networks=tuple(arguments.networks or ()),
        gateways=gateways,
        nameservers=nameservers,
        database_url=arguments.database_url or "",
        workers=_once((*listed, *named)),
        directory=arguments.directory.absolute(),
        authority=None if arguments.ca_cert is None else (arguments.ca_cert, arguments.ca_key),
        days=arguments.days,
        renew=arguments.renew,
        joins=arguments.joins,
        service=service_user(arguments.user),
    )


def _once(hosts: Sequence[str]) -> tuple[str, ...]:
    """Hosts without repetition. Raises SettingError where two differ in capitals alone, which are one host."""
    known: dict[str, str] = {}
    for host in hosts:
        other = known.setdefault(host.lower(), host)
        if other != host:
            raise SettingError(f"{other} and {host} are the same host; accepted: one way of writing it")
    return tuple(known.values())


def _write(request: Request, planned: Plan) -> None:
    make_directory(request.directory, own(0o755))
    if any(file.path.parent == request.directory / "ca" for file in planned.files):
        rights = replace(request.service.reads, mode=0o750) if request.joins else own(0o700)
        make_directory(request.directory / "ca", rights)
    if request.workers:
        make_directory(request.directory / "workers", own(0o700))
    for host in request.workers:
        make_directory(worker_place(request.directory, host), own(0o700))
    for file in planned.files:
        file.write()
    # Once for all files: a thousand workers have five thousand.
    os.sync()
    tokens = planned.settings.tokens_file
    if planned.operator:
        add_all(tokens, {OPERATOR: None}, (Scope.OPERATE,), keep=lambda made: _keep(request, made))
    if planned.tokens:
        each_its_own = {host: (host,) for host in planned.tokens}
        add_all(tokens, each_its_own, (Scope.HOOK,), keep=lambda made: _keep(request, made))
    # The settings last: a controller that starts meanwhile has them with all that they name, or not at all.
    if planned.settings_file is not None:
        planned.settings_file.write()


def _keep(request: Request, made: Mapping[str, str]) -> None:
    """Write tokens into files, before their hashes are where the controller looks. A file whose token has no line is
    of no use any more."""
    for name, secret in made.items():
        path = _operators_file(request) if name == OPERATOR else worker_place(request.directory, name) / WORKER_TOKEN
        File(path, f"{secret}\n".encode("ascii"), own(0o600), replaces=True).write()


def _operators_file(request: Request) -> Path:
    return request.directory / f"{OPERATOR}{SUFFIX}"


def _warnings(request: Request, planned: Plan) -> Iterator[str]:
    now = certificates.now()
    pairs = [planned.authority, *planned.own, *planned.workers.values()]
    ending = [pair for pair in pairs if certificates.ends_within(pair.certificate, now, SOON)]
    for pair in ending[:3]:
        yield f"{pair.path} ends on {certificates.day(pair.certificate)}; --renew makes it anew"
    if len(ending) > 3:
        yield f"{len(ending) - 3} more certificates end within {SOON} days"
    if planned.other_env:
        named = ", ".join(planned.other_env[:3]) + (", …" if len(planned.other_env) > 3 else "")
        yield f"worker.env is another than would be made now, and stays: {named}"
    if not request.gateways and any(file.path.name == "worker.env" for file in planned.files):
        yield "no --gateways: LARK_WORKER_GATEWAYS is empty in worker.env, and jobs reach their own network alone"
    if not planned.operator and not _operators_file(request).exists():
        yield (
            f"{planned.settings.tokens_file} has an {OPERATOR}'s token, whose file is elsewhere; remove its line to "
            "have another made"
        )
    wrong = own_name.problem()
    if wrong:
        yield f"this machine's own name does not resolve ({wrong}): the start takes minutes; add it to /etc/hosts"


def _document(request: Request, planned: Plan, warnings: Sequence[str], todo: Sequence[Step]) -> dict[str, object]:
    tokens = set(planned.tokens)
    return {
        "changed": planned.changes,
        "directory": str(request.directory),
        "database": planned.database,
        "files": [
            {"file": str(path), "outcome": str(outcome), "ends": ends}
            for path, outcome, ends in _rows(request, planned)
        ],
        "workers": [
            {
                "host": host,
                "directory": str(worker_place(request.directory, host)),
                "certificate": str(pair.outcome),
                "token": str(Outcome.MADE if host in tokens else Outcome.KEPT),
                "ends": certificates.day(pair.certificate),
            }
            for host, pair in planned.workers.items()
        ],
        "warnings": list(warnings),
        "next": [{"where": step.where, "what": step.what, "commands": list(step.commands)} for step in todo],
    }


def _print(request: Request, planned: Plan, warnings: Sequence[str], todo: Sequence[Step]) -> None:
    if planned.database:
        print(f"{planned.database}: fit for Lark")
    printing.table(("FILE", "OUTCOME", "ENDS"), list(_rows(request, planned)))
    if planned.workers:
        changed = len(planned.changed_workers)
        first = min(map(_day, planned.workers.values()))
        print(
            f"Workers' directories in {request.directory / 'workers'}: {changed} changed, "
            f"{len(planned.workers) - changed} as they were. The first of their certificates ends on {first}."
        )
    if not planned.changes:
        print("Everything is there; nothing was changed.")
    for warning in warnings:
        print(f"warning: {warning}")
    print("\nWhat to do next:")
    for number, step in enumerate(todo, 1):
        print(f"\n{number}. {step.where}: {step.what}")
        for command in step.commands:
            print(f"     {command}")


def _rows(request: Request, planned: Plan) -> Iterator[tuple[str, Outcome, str]]:
    """Path, outcome and end of each file that is not a worker's."""
    for pair in (planned.authority, *planned.own):
        yield str(pair.path), pair.outcome, _day(pair)
    joining = request.directory / texts.JOIN_SETTINGS
    others = (
        (planned.settings.policy_file, planned.policy is not None),
        (_operators_file(request), planned.operator),
        (request.directory / "lark.env", planned.settings_file is not None),
        (joining, any(file.path == joining for file in planned.files)),
    )
    for path, is_made in others:
        if is_made or path.exists():
            yield str(path), Outcome.MADE if is_made else Outcome.KEPT, ""


def _day(pair: Pair) -> str:
    return certificates.day(pair.certificate)
