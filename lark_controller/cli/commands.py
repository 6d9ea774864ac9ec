"""The functions that run the commands of ``lark``: each takes the parsed arguments and returns the exit code."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from argcomplete.shell_integration import shellcode

from lark_common import log
from lark_common.client import Client, ProblemError
from lark_common.endpoint import read_token
from lark_common.errors import PolicyError, SettingError
from lark_common.runs import number_in_word
from lark_controller.cli import instances_table, network_map, own_name, pairs_table, printing, traffic_tables
from lark_controller.cli.text_files import read_text
from lark_controller.settings import load, table

if TYPE_CHECKING:
    from lark_controller.store import Store

OK: Final = 0
NO: Final = 1

# Subjects of the audit trail that are neither jobs nor switches.
_AUDITED: Final = ("policy", "controller", "joins")

Arguments = argparse.Namespace


def connected(arguments: Arguments) -> Client:
    """A client of the controller that the command line and the environment name. Raises SettingError."""
    token = os.environ.get("LARK_TOKEN")
    path = arguments.token_file or (None if token else os.environ.get("LARK_TOKEN_FILE"))
    if path:
        token = read_token(Path(path))
    # A token that the command line names goes before that of the environment.
    by_munge = arguments.munge and not arguments.token_file
    return Client(arguments.url, None if by_munge else token, arguments.ca, munge_socket="" if by_munge else None)


def run(arguments: Arguments) -> int:
    """Run the controller."""
    chosen = {row.name: value for row in table() if (value := getattr(arguments, row.name)) is not None}
    settings = load(os.environ, chosen)
    log.configure(settings.log_level, settings.log_format)
    own_name.warn()
    from lark_controller.cli import run as app

    return app.run(settings)


def setup(arguments: Arguments) -> int:
    """Make what a new site needs: certificates, tokens, settings, a first policy, and a directory for each worker."""
    from lark_controller.cli.setup import command

    return command.run(arguments)


def check(arguments: Arguments) -> int:
    """Find every mistake in a policy file, without a controller."""
    from lark_controller.policies import file
    from lark_controller.qos.warnings import policy_warnings

    text = read_text(arguments.file)
    try:
        warnings = policy_warnings(file.load(text, str(arguments.file)))
        mistakes: list[dict[str, Any]] = []
    except PolicyError as error:
        warnings = ()
        mistakes = [
            {
                "line": each.line,
                "column": each.column,
                "key": each.key,
                "problem": each.problem,
                "accepted": each.accepted,
            }
            for each in error.mistakes
        ]
    if arguments.json:
        printing.json_out({"valid": not mistakes, "mistakes": mistakes, "warnings": warnings})
    else:
        for mistake in mistakes:
            print(printing.mistake(mistake, str(arguments.file)))
        for warning in warnings:
            print(f"{arguments.file}: warning: {warning}")
        if not mistakes:
            print(f"{arguments.file}: no mistakes")
    return NO if mistakes else OK


def plan(arguments: Arguments) -> int:
    """Show the changes that a policy file would make on the running pool."""
    return _show_plan(arguments, read_text(arguments.file))


def _show_plan(arguments: Arguments, text: str) -> int:
    plan = connected(arguments).plan_policy(text)
    details = {"jobs": arguments.jobs, "flows": arguments.flows}
    return _show(arguments, plan, partial(printing.plan, **details), no=bool(plan["refusals"]))


def explain(arguments: Arguments) -> int:
    """Say why a packet from SRC reaches DST, or does not."""
    found = connected(arguments).explain(arguments.src, arguments.dst)
    return _show(arguments, found, printing.explanation, no=found["verdict"] != "forwarded")


def jobs(arguments: Arguments) -> int:
    """List jobs, or show one."""
    client, word = connected(arguments), arguments.job
    chosen = {name: getattr(arguments, name) for name in ("owner", "group", "host", "state")}
    if word is None:
        return _show(arguments, list(client.jobs(**chosen)), printing.jobs)
    try:
        found = client.job_at(word) if _is_address(word) else client.job(word)
        return _show(arguments, found, lambda job: _show_job(client, job))
    except ProblemError as error:
        several = _cluster(client, word, chosen) if error.status == 409 else []
        # A cluster of one whose number begins an id, too, is not what alone may be meant.
        if len(several) < 2 and not any(chosen.values()):
            raise
    return _show(arguments, several, printing.jobs)


def _show_job(client: Client, found: dict[str, Any]) -> None:
    """Show a job, and the WAN port by which its packets would leave, where that is down."""
    down: Sequence[dict[str, Any]] = ()
    if found["state"] not in ("ended", "refused"):
        # A hook's token may read jobs, and not what is dropped.
        with suppress(ProblemError):
            down = client.drop_list(1, found["id"]).get("down") or ()
    printing.job(found, down)


def _cluster(client: Client, word: str, chosen: dict[str, str | None]) -> list[dict[str, Any]]:
    """The jobs of the cluster that a word is, the live ones where some live and no state is chosen."""
    number = number_in_word(word)
    if number is None or number.proc is not None:
        return []
    found = list(client.jobs(cluster=word, **chosen))
    return found or ([] if chosen["state"] else list(client.jobs(cluster=word, **{**chosen, "state": "any"})))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def top(arguments: Arguments) -> int:
    """Show what live jobs send and receive now, the most first, again and again."""
    client = connected(arguments)
    while True:
        answer = client.rate_list(arguments.by, arguments.limit)
        found = answer["rates"]
        if arguments.json:
            return _show(arguments, found, lambda _: None)
        if not arguments.once:
            printing.cleared()
        traffic_tables.rates(found, arguments.by, traffic_tables.Unknown.of(answer))
        if arguments.once:
            return OK
        sys.stdout.flush()
        time.sleep(arguments.interval)


def drops(arguments: Arguments) -> int:
    """Show what is dropped now: from whom, to where, by which rule, how fast."""
    return _show(arguments, connected(arguments).drop_list(arguments.limit), traffic_tables.drops)


def advice(arguments: Arguments) -> int:
    """Compare a job's request with what it used and lost, and advise a request."""
    client = connected(arguments)
    if arguments.application:
        return _show(arguments, client.pairs(arguments.job, application=True), pairs_table.show)
    found = client.advice(arguments.job)
    try:
        found["pairs"] = client.pairs(found["job"])
    except ProblemError as error:
        # A token may be for advice on jobs alone, and an earlier controller has no pairs.
        if error.status not in (403, 404):
            raise
        found["pairs"] = None

    def show(advice: printing.Answer) -> None:
        printing.advice(advice)
        if advice["pairs"] is not None and advice["pairs"]["pairs"]:
            pairs_table.show(advice["pairs"])

    return _show(arguments, found, show)


def lift(arguments: Arguments) -> int:
    """Let a quarantined job pass its traffic again, whatever the pool reports."""
    found = connected(arguments).lift(arguments.job)
    return _show(
        arguments, found, lambda job: print(f"job {job['cluster']}.{job['proc']} ({job['id']}) is in no quarantine")
    )


def audit(arguments: Arguments) -> int:
    """Show who changed what, forged ads among it, the newest first."""
    client, subject = connected(arguments), arguments.subject
    entries = list(islice(client.audit(subject), max(0, arguments.limit)))
    if subject is None or entries or not arguments.limit:
        return _show(arguments, entries, printing.audit)
    if arguments.json:
        printing.json_out([])
    if subject in _AUDITED or _is_there(client, subject):
        print(f"There is no event of {subject}.", file=sys.stderr)
        return OK
    print(
        f"There is no event of {subject}, and neither a job nor a switch is called so; also accepted: "
        f"{', '.join(_AUDITED)}",
        file=sys.stderr,
    )
    return NO


def _is_there(client: Client, word: str) -> bool:
    """True if a job or a switch has that name."""
    for ask in (client.job, client.switch):
        try:
            ask(word)
        except ProblemError as error:
            if error.status != 404:
                raise
        else:
            return True
    return False


def instances(arguments: Arguments) -> int:
    """List the controllers on one database: the active one, and those that stand by."""
    return _show(arguments, connected(arguments).instances(), instances_table.show)


def drain(arguments: Arguments) -> int:
    """Have the active controller let go, so that one that stands by takes over."""
    asked = connected(arguments)
    found = asked.instances()
    chosen = arguments.instance or found["active"]
    if chosen is None:
        print("No controller is active.", file=sys.stderr)
        return NO
    return _show(arguments, asked.drain(chosen), lambda _found: print(f"{_named(found, chosen)} lets go"))


def _named(found: dict[str, Any], chosen: str) -> str:
    return next((each["name"] for each in found["instances"] if each["id"] == chosen), chosen)


def switches(arguments: Arguments) -> int:
    """List switches, or show one."""
    client = connected(arguments)
    if arguments.datapath is None:
        if arguments.flows:
            raise SettingError("--flows needs a switch: lark switches SWITCH --flows")
        return _show(arguments, client.switches(), printing.switches)
    if arguments.flows:
        return _show(arguments, list(client.flows(arguments.datapath)), printing.flows)
    return _show(arguments, client.switch(arguments.datapath), printing.switch)


def network(arguments: Arguments) -> int:
    """Show the network: switches with their load, and which users reach each other."""
    return _show(arguments, connected(arguments).map(), network_map.show)


def reserve_add(arguments: Arguments) -> int:
    """Reserve bandwidth for what SRC sends to DST."""
    found = connected(arguments).reserve(
        arguments.src, arguments.dst, arguments.rate, arguments.seconds, steady=arguments.steady
    )
    return _show(arguments, found, printing.reservation)


def reserve_list(arguments: Arguments) -> int:
    """List reservations."""
    return _show(arguments, list(connected(arguments).reservations(arguments.job)), printing.reservations)


def reserve_show(arguments: Arguments) -> int:
    """Show a reservation."""
    return _show(arguments, connected(arguments).reservation(arguments.reservation), printing.reservation)


def reserve_change(arguments: Arguments) -> int:
    """Change a reservation; traffic is not interrupted."""
    named = (("rate", arguments.rate), ("duration", arguments.seconds), ("steady", arguments.steady))
    change: dict[str, float | None] = {name: value for name, value in named if value is not None}
    if not change:
        raise SettingError("nothing is to change: lark reserve change RESERVATION --rate 250Mbit --seconds 3600")
    found = connected(arguments).change_reservation(arguments.reservation, **change)
    return _show(arguments, found, printing.reservation)


def reserve_release(arguments: Arguments) -> int:
    """Release a reservation."""
    return _show(arguments, connected(arguments).release(arguments.reservation), printing.reservation)


def reserve_links(arguments: Arguments) -> int:
    """Show what each link carries, and what is reserved and left."""
    return _show(arguments, connected(arguments).links(), printing.links)


def policy_show(arguments: Arguments) -> int:
    """Print the policy in force, or another version."""
    client = connected(arguments)
    found = client.policy() if arguments.version is None else client.policy_version(arguments.version)
    return _show(arguments, found, printing.policy)


def policy_history(arguments: Arguments) -> int:
    """List the versions of the policy, the newest first."""
    all_of_them = connected(arguments).policy_versions()
    versions = list(islice(all_of_them, arguments.limit))
    more = next(all_of_them, None) is not None
    return _show(arguments, versions, partial(printing.policy_history, more=more))


def policy_diff(arguments: Arguments) -> int:
    """Show how two versions of the policy differ."""
    found = connected(arguments).policy_difference(arguments.old, arguments.new)
    return _show(arguments, found, printing.policy_difference)


def policy_back(arguments: Arguments) -> int:
    """Put an earlier version of the policy in force again."""
    client = connected(arguments)
    if arguments.plan:
        return _show_plan(arguments, client.policy_version(arguments.version)["text"])
    found = client.restore_policy(arguments.version)
    words = f"version {found['version']} is in force, with the text of version {arguments.version}"
    return _show(arguments, found, lambda _: print(words))


def policy_put(arguments: Arguments) -> int:
    """Put a policy file in force; a bad one changes nothing."""
    found = connected(arguments).put_policy(read_text(arguments.file))
    return _show(arguments, found, lambda policy: print(f"version {policy['version']} is in force"))


def db_upgrade(arguments: Arguments) -> int:
    """Bring the database's schema to this version of Lark, unless a controller uses an older one."""
    return _on_database(arguments, lambda store: store.migrate_by_hand())


def db_version(arguments: Arguments) -> int:
    """Print the version of the database's schema."""
    return _on_database(arguments, lambda store: None)


def _on_database(arguments: Arguments, work: Callable[[Store], None]) -> int:
    """Do something to the database of the settings, then print its schema's version beside this program's."""
    from lark_controller.store import Store

    names = ("database_url", "state_dir")
    chosen = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    store = Store.open(load(os.environ, chosen).database_url)
    try:
        work(store)
        found = {"version": store.schema_version(), "newest": Store.newest_schema()}
    finally:
        store.close()
    return _show(arguments, found, lambda found: print(found["version"] or "none"), found["version"] != found["newest"])


def schema(arguments: Arguments) -> int:
    """Print the JSON Schema of policy files."""
    from lark_controller.policies.schema import schema

    printing.json_out(schema())
    return OK


def completion(arguments: Arguments) -> int:
    """Print what completes this command at a shell's prompt."""
    print(shellcode(["lark"], shell=arguments.shell))
    return OK


def _show(arguments: Arguments, found: Any, show: Callable[[Any], None], no: bool = False) -> int:
    if arguments.json:
        printing.json_out(found)
    else:
        show(found)
    return NO if no else OK
