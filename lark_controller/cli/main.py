"""The ``lark`` command.

Exit codes: 0 done; 1 the answer is no (mistakes found, refused, not forwarded); 2 wrong usage or setting; 3 the
controller cannot be reached. Errors are one sentence on standard error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lark_common import log
from lark_common.client import (
    Client,
    ProblemError,
    UnreachableError,
    read_token,
)
from lark_common.errors import LarkError, PolicyError, SettingError
from lark_controller import __version__
from lark_controller.cli import network_map, own_name, printing, tokens
from lark_controller.cli.text_files import read_text
from lark_controller.settings import load, table

if TYPE_CHECKING:
    from lark_controller.store import Store

OK: Final = 0
NO: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
# As for a program that SIGPIPE ends. It is no answer: "forwarded" is 0.
UNREAD: Final = 128 + signal.SIGPIPE

DEFAULT_URL: Final = "http://127.0.0.1:8080"

_JOB: Final = "a job: 103.0, submit1#103.0 where two access points have it, a GlobalJobId, an id or its first 4 digits"

Arguments = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = parser().parse_args(argv)
    run: Callable[[Arguments], int] = arguments.run
    try:
        status = run(arguments)
        # What is still in the buffer would fail after the exit code is settled.
        sys.stdout.flush()
        return status
    except UnreachableError as error:
        return _print_error(error, UNREACHABLE)
    except SettingError as error:
        return _print_error(error, USAGE)
    except ProblemError as error:
        for mistake in error.mistakes:
            print(printing.mistake(mistake, "policy"), file=sys.stderr)
        return _print_error(error, NO)
    except LarkError as error:
        return _print_error(error, NO)
    except BrokenPipeError:
        # The reader of the output has closed it; the interpreter must not complain about it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, from which the reference is checked."""
    top = argparse.ArgumentParser(prog="lark", description="The network as a managed resource of an HTCondor pool.")
    top.add_argument("--version", action="version", version=f"lark {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _command(commands, "run", _run, "Run the controller.")
    for setting in table():
        accepted = f" [{setting.default or 'none'}]"
        run.add_argument(setting.option, metavar="VALUE", help=setting.about.meaning.replace("%", "%%") + accepted)

    check = _command(commands, "check", _check, "Find every mistake in a policy file, without a controller.")
    check.add_argument("file", type=Path)
    _with_json(check)

    plan = _remote(commands, "plan", _plan, "Say what a policy file would change on the running pool.")
    plan.add_argument("file", type=Path)
    _with_details(plan)

    explain = _remote(commands, "explain", _explain, "Say why a packet from SRC reaches DST, or does not.")
    explain.add_argument("src", help=f"an address, or {_JOB}")
    explain.add_argument("dst", help=f"an address, or {_JOB}")

    jobs = _remote(commands, "jobs", _jobs, "List jobs, or show one.")
    jobs.add_argument("job", nargs="?", help=f"an address, or {_JOB}")
    for name in ("owner", "group", "host"):
        short = "; its name without the domain will do" if name == "host" else ""
        jobs.add_argument(f"--{name}", help=f"only jobs of this {name}{short}")
    jobs.add_argument(
        "--state", help="registering, enforced, pending, quarantined, refused, ended, live (default) or any"
    )

    lift = _remote(commands, "lift", _lift, "Let a quarantined job pass its traffic again, whatever the pool reports.")
    lift.add_argument("job", help=_JOB)

    audit = _remote(commands, "audit", _audit, "Show who changed what, forged ads among it, the newest first.")
    audit.add_argument("subject", nargs="?", help=f"only what concerns this switch, policy, controller, or {_JOB}")
    audit.add_argument("--limit", type=int, default=50, help="how many [50]")

    top_ = _remote(commands, "top", _top, "Show what live jobs send and receive now, the most first, again and again.")
    top_.add_argument("--by", choices=("group", "user", "host", "job"), default="group", help="whose rates [group]")
    top_.add_argument("--limit", type=int, default=20, help="how many [20]")
    top_.add_argument("--interval", type=float, default=5.0, metavar="SECONDS", help="seconds between two looks [5]")
    top_.add_argument("--once", action="store_true", help="look once; so does --json")

    drops = _remote(
        commands, "drops", _drops, "Show what is dropped now: from whom, to where, by which rule, how fast."
    )
    drops.add_argument("--limit", type=int, default=50, help="how many [50]")

    _remote(commands, "map", _map, "Show the network: switches with their load, and which users reach each other.")

    switches = _remote(commands, "switches", _switches, "List switches, or show one.")
    switches.add_argument("datapath", nargs="?", metavar="DPID", help="a datapath id or a name")
    switches.add_argument("--flows", action="store_true", help="its flows, with the policy that asked for each")

    _reserve_commands(commands)
    _policy_commands(commands)
    _database_commands(commands)

    _token_command(commands)

    _command(commands, "schema", _schema, "Print the JSON Schema of policy files.")
    return top


def _token_command(commands: Any) -> None:
    token = _command(
        commands,
        "token",
        tokens.run,
        "Make an API token, print it once, store its hash; or make those of all workers, each in a file; or list them.",
    )
    token.add_argument("name", nargs="?", help="what the audit trail calls whoever uses it")
    token.add_argument("--scope", action="append", choices=("hook", "read", "operate"))
    token.add_argument(
        "--host",
        action="append",
        metavar="HOST",
        help="with the scope hook: good for the jobs of this host alone, a name or a pattern such as *.example",
    )
    token.add_argument("--expires", type=date.fromisoformat, metavar="YYYY-MM-DD", help="not valid from this day on")
    token.add_argument(
        "--output", type=Path, metavar="FILE", help="write it to this file, mode 0600; nothing is printed"
    )
    token.add_argument("--workers", type=Path, metavar="FILE", help="a token for each host of this list, one a line")
    token.add_argument("--directory", type=Path, metavar="DIR", help="where --workers puts them, each in HOST.token")
    token.add_argument("--owner", metavar="USER", help="whose the written files are")
    token.add_argument("--list", action="store_true", help="list the tokens of the file, and what each is good for")
    token.add_argument("--file", type=Path, help="the tokens file [LARK_TOKENS_FILE]")
    _with_json(token)


def _reserve_commands(commands: Any) -> None:
    reserve = commands.add_parser("reserve", help="Reserve bandwidth, or show what is reserved and what is left.")
    actions = reserve.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = _remote(actions, "add", _reserve_add, "Reserve bandwidth for what SRC sends to DST.")
    add.add_argument("src", help="a job (103.0, its id or address), or a host of the topology")
    add.add_argument("dst", help="the same, or wan, or an address or network")
    add.add_argument("rate", type=float, help="Mb/s of L2 bytes")
    add.add_argument("--seconds", type=float, help="how long [as long as its jobs live]")
    listed = _remote(actions, "list", _reserve_list, "List reservations.")
    listed.add_argument("--job", help=f"only those of {_JOB}, and flows that go to it")
    show = _remote(actions, "show", _reserve_show, "Show a reservation.")
    show.add_argument("reservation")
    change = _remote(actions, "change", _reserve_change, "Change a reservation; traffic is not interrupted.")
    change.add_argument("reservation")
    change.add_argument("--rate", type=float, help="the new rate, Mb/s")
    change.add_argument("--seconds", type=float, help="it ends in so many seconds")
    release = _remote(actions, "release", _reserve_release, "Release a reservation.")
    release.add_argument("reservation")
    _remote(actions, "links", _reserve_links, "Show what each link carries, and what is reserved and left.")


def _policy_commands(commands: Any) -> None:
    policy = commands.add_parser(
        "policy", help="Show the policy in force and those before it, or put another in force."
    )
    actions = policy.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = _remote(actions, "show", _policy_show, "Print the policy in force, or another version.")
    put = _remote(actions, "put", _policy_put, "Put a policy file in force; a bad one changes nothing.")
    put.add_argument("file", type=Path)
    history = _remote(actions, "history", _policy_history, "List the versions of the policy, the newest first.")
    history.add_argument("--limit", type=int, default=20, help="how many [20]")
    show.add_argument("version", type=int, nargs="?", help="another version than the one in force")
    diff = _remote(actions, "diff", _policy_diff, "Show how two versions of the policy differ.")
    diff.add_argument("old", type=int, metavar="OLD", help="a version")
    diff.add_argument("new", type=int, nargs="?", metavar="NEW", help="another one [the one in force]")
    back = _remote(actions, "back", _policy_back, "Put an earlier version of the policy in force again.")
    back.add_argument("version", type=int)
    back.add_argument("--plan", action="store_true", help="change nothing; say what it would change, as `lark plan`")
    _with_details(back)


def _with_details(made: argparse.ArgumentParser) -> None:
    made.add_argument("--jobs", action="store_true", help="list the jobs that would be treated otherwise")
    made.add_argument("--flows", action="store_true", help="list the flows that would change on each switch")


def _database_commands(commands: Any) -> None:
    database = commands.add_parser("db", help="The database's schema.")
    actions = database.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("upgrade", _db_upgrade, "Bring the database's schema to this version of Lark."),
        ("version", _db_version, "Print the version of the database's schema."),
    ):
        action = _command(actions, name, run, text)
        action.add_argument("--database-url", help="[LARK_DATABASE_URL]")
        action.add_argument("--state-dir", help="[LARK_STATE_DIR]")
        _with_json(action)


def _command(commands: Any, name: str, run: Callable[[Arguments], int], text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=run)
    return made


def _remote(commands: Any, name: str, run: Callable[[Arguments], int], text: str) -> argparse.ArgumentParser:
    """A command that calls a running controller."""
    made = _command(commands, name, run, text)
    made.add_argument("--url", default=os.environ.get("LARK_URL", DEFAULT_URL), help="the controller [LARK_URL]")
    made.add_argument("--token-file", type=Path, help="a file with the token [LARK_TOKEN_FILE; LARK_TOKEN]")
    made.add_argument("--ca", default=os.environ.get("LARK_CA"), help="CA certificates to trust [LARK_CA]")
    _with_json(made)
    return made


def _with_json(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="print JSON")


def _client(arguments: Arguments) -> Client:
    token = os.environ.get("LARK_TOKEN")
    path = arguments.token_file or (None if token else os.environ.get("LARK_TOKEN_FILE"))
    if path:
        token = read_token(Path(path))
    return Client(arguments.url, token, arguments.ca)


def _run(arguments: Arguments) -> int:
    chosen = {row.name: value for row in table() if (value := getattr(arguments, row.name)) is not None}
    settings = load(os.environ, chosen)
    log.configure(settings.log_level, settings.log_format)
    own_name.warn()
    from lark_controller.cli import run as app

    return app.run(settings)


def _check(arguments: Arguments) -> int:
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


def _plan(arguments: Arguments) -> int:
    return _show_plan(arguments, read_text(arguments.file))


def _show_plan(arguments: Arguments, text: str) -> int:
    plan = _client(arguments).plan_policy(text)
    details = {"jobs": arguments.jobs, "flows": arguments.flows}
    return _show(arguments, plan, partial(printing.plan, **details), no=bool(plan["refusals"]))


def _explain(arguments: Arguments) -> int:
    found = _client(arguments).explain(arguments.src, arguments.dst)
    return _show(arguments, found, printing.explanation, no=found["verdict"] != "forwarded")


def _jobs(arguments: Arguments) -> int:
    client = _client(arguments)
    if arguments.job is not None:
        found = client.job_at(arguments.job) if _is_address(arguments.job) else client.job(arguments.job)
        return _show(arguments, found, printing.job)
    chosen = {name: getattr(arguments, name) for name in ("owner", "group", "host", "state")}
    return _show(arguments, list(client.jobs(**chosen)), printing.jobs)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _top(arguments: Arguments) -> int:
    client = _client(arguments)
    while True:
        found = client.rates(arguments.by, arguments.limit)
        if arguments.json:
            return _show(arguments, found, lambda _: None)
        if not arguments.once:
            printing.cleared()
        printing.rates(found, arguments.by)
        if arguments.once:
            return OK
        sys.stdout.flush()
        time.sleep(max(0.1, arguments.interval))


def _drops(arguments: Arguments) -> int:
    return _show(arguments, _client(arguments).drops(arguments.limit), printing.drops)


def _lift(arguments: Arguments) -> int:
    found = _client(arguments).lift(arguments.job)
    return _show(
        arguments, found, lambda job: print(f"job {job['cluster']}.{job['proc']} ({job['id']}) is in no quarantine")
    )


def _audit(arguments: Arguments) -> int:
    entries = islice(_client(arguments).audit(arguments.subject), max(0, arguments.limit))
    return _show(arguments, list(entries), printing.audit)


def _switches(arguments: Arguments) -> int:
    client = _client(arguments)
    if arguments.datapath is None:
        if arguments.flows:
            raise SettingError("--flows needs a switch: lark switches DPID --flows")
        return _show(arguments, client.switches(), printing.switches)
    if arguments.flows:
        return _show(arguments, list(client.flows(arguments.datapath)), printing.flows)
    return _show(arguments, client.switch(arguments.datapath), printing.switch)


def _map(arguments: Arguments) -> int:
    return _show(arguments, _client(arguments).map(), network_map.show)


def _reserve_add(arguments: Arguments) -> int:
    found = _client(arguments).reserve(arguments.src, arguments.dst, arguments.rate, arguments.seconds)
    return _show(arguments, found, printing.reservation)


def _reserve_list(arguments: Arguments) -> int:
    return _show(arguments, list(_client(arguments).reservations(arguments.job)), printing.reservations)


def _reserve_show(arguments: Arguments) -> int:
    return _show(arguments, _client(arguments).reservation(arguments.reservation), printing.reservation)


def _reserve_change(arguments: Arguments) -> int:
    named = (("rate", arguments.rate), ("duration", arguments.seconds))
    change: dict[str, float | None] = {name: value for name, value in named if value is not None}
    if not change:
        raise SettingError("nothing is to change: lark reserve change RESERVATION --rate MBITS --seconds SECONDS")
    found = _client(arguments).change_reservation(arguments.reservation, **change)
    return _show(arguments, found, printing.reservation)


def _reserve_release(arguments: Arguments) -> int:
    return _show(arguments, _client(arguments).release(arguments.reservation), printing.reservation)


def _reserve_links(arguments: Arguments) -> int:
    return _show(arguments, _client(arguments).links(), printing.links)


def _policy_show(arguments: Arguments) -> int:
    client = _client(arguments)
    found = client.policy() if arguments.version is None else client.policy_version(arguments.version)
    return _show(arguments, found, printing.policy)


def _policy_history(arguments: Arguments) -> int:
    versions = list(islice(_client(arguments).policy_versions(), max(0, arguments.limit)))
    return _show(arguments, versions, printing.policy_history)


def _policy_diff(arguments: Arguments) -> int:
    found = _client(arguments).policy_difference(arguments.old, arguments.new)
    return _show(arguments, found, printing.policy_difference)


def _policy_back(arguments: Arguments) -> int:
    client = _client(arguments)
    if arguments.plan:
        return _show_plan(arguments, client.policy_version(arguments.version)["text"])
    found = client.restore_policy(arguments.version)
    words = f"version {found['version']} is in force, with the text of version {arguments.version}"
    return _show(arguments, found, lambda _: print(words))


def _policy_put(arguments: Arguments) -> int:
    found = _client(arguments).put_policy(read_text(arguments.file))
    return _show(arguments, found, lambda policy: print(f"version {policy['version']} is in force"))


def _db_upgrade(arguments: Arguments) -> int:
    return _on_database(arguments, lambda store: store.migrate())


def _db_version(arguments: Arguments) -> int:
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


def _schema(arguments: Arguments) -> int:
    from lark_controller.policies.schema import schema

    printing.json_out(schema())
    return OK


def _show(arguments: Arguments, found: Any, show: Callable[[Any], None], no: bool = False) -> int:
    if arguments.json:
        printing.json_out(found)
    else:
        show(found)
    return NO if no else OK


def _print_error(error: LarkError, code: int) -> int:
    print(f"lark: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
