"""The parser of ``lark``: every command with its arguments and its help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from lark_controller import __version__
from lark_controller.cli import commands, external, joins, tokens
from lark_controller.cli.values import addresses, count, day, days, duration, host_name, networks, rate, seconds, span
from lark_controller.settings import table

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Run = Callable[[argparse.Namespace], int]

_JOB: Final = (
    "a job: 103.0, or 103 where the cluster has one, submit1#103.0 where two access points have it, a GlobalJobId, "
    "an id or its first 4 digits"
)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, from which the reference is checked."""
    top = argparse.ArgumentParser(prog="lark", description="The network as a managed resource of an HTCondor pool.")
    top.add_argument("--version", action="version", version=f"lark {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _command(subparsers, "run", commands.run)
    for setting in table():
        accepted = f" [{setting.default or 'none'}]"
        run.add_argument(setting.option, metavar="VALUE", help=setting.about.meaning.replace("%", "%%") + accepted)

    _setup_command(subparsers)

    check = _command(subparsers, "check", commands.check)
    check.add_argument("file", type=Path)
    _with_json(check)

    plan = _remote(subparsers, "plan", commands.plan)
    plan.add_argument("file", type=Path)
    _with_details(plan)

    explain = _remote(subparsers, "explain", commands.explain)
    explain.add_argument("src", help=f"an address, or {_JOB}")
    explain.add_argument("dst", help=f"an address, or {_JOB}")

    jobs = _remote(subparsers, "jobs", commands.jobs, watched=True)
    jobs.add_argument("job", nargs="?", help=f"an address, a cluster (103), or {_JOB}")
    for name in ("owner", "group", "host"):
        short = "; its name without the domain will do" if name == "host" else ""
        jobs.add_argument(f"--{name}", help=f"only jobs of this {name}{short}")
    jobs.add_argument(
        "--state", help="registering, enforced, blocked, pending, quarantined, refused, ended, live (default) or any"
    )

    advice = _remote(subparsers, "advice", commands.advice)
    advice.add_argument("job", help=_JOB)
    advice.add_argument(
        "--application", action="store_true", help="the pairs of the whole application, such as of a job of MPI"
    )

    _remote(subparsers, "lift", commands.lift).add_argument("job", help=_JOB)

    audit = _remote(subparsers, "audit", commands.audit)
    audit.add_argument("subject", nargs="?", help=f"only what concerns this switch, policy, controller, or {_JOB}")
    audit.add_argument("--limit", type=count, default=50, help="how many [50]")

    top_ = _remote(subparsers, "top", commands.top)
    top_.add_argument(
        "--by", choices=("group", "user", "host", "access_point", "job"), default="group", help="whose rates [group]"
    )
    top_.add_argument("--limit", type=count, default=20, help="how many [20]")
    top_.add_argument("--interval", type=seconds, default=5.0, metavar="SECONDS", help="seconds between two looks [5]")
    top_.add_argument("--once", action="store_true", help="look once; so does --json")

    drops = _remote(subparsers, "drops", commands.drops, watched=True)
    drops.add_argument("--limit", type=count, default=50, help="how many [50]")

    _remote(subparsers, "map", commands.network, watched=True)

    switches = _remote(subparsers, "switches", commands.switches, watched=True)
    switches.add_argument("datapath", nargs="?", metavar="SWITCH", help="its name, datapath id or host")
    switches.add_argument("--flows", action="store_true", help="its flows, with the policy that asked for each")

    _instance_commands(subparsers)
    _join_commands(subparsers)
    _reserve_commands(subparsers)
    _external_commands(subparsers)
    _policy_commands(subparsers)
    _database_commands(subparsers)

    _token_command(subparsers)

    _command(subparsers, "schema", commands.schema)

    completion = _command(subparsers, "completion", commands.completion)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return top


def _instance_commands(subparsers: Any) -> None:
    _remote(subparsers, "instances", commands.instances, watched=True)
    drain = _remote(subparsers, "drain", commands.drain)
    drain.add_argument("instance", nargs="?", help="its name or id [the active one]")


def _setup_command(subparsers: Any) -> None:
    setup = _command(subparsers, "setup", commands.setup)
    setup.add_argument(
        "--name",
        type=host_name,
        action="append",
        required=True,
        help="the controller's name as workers use it; more names are further --name",
    )
    setup.add_argument(
        "--address", type=ip_address, action="append", metavar="IP", help="an address of it, to which switches connect"
    )
    setup.add_argument("--networks", type=networks, metavar="NETWORK,…", help="where jobs get addresses")
    setup.add_argument("--gateways", type=addresses, metavar="IP,…", help="routers in there, one for each IP version")
    setup.add_argument("--nameservers", type=addresses, metavar="IP,…", help="jobs' name servers [the worker's own]")
    setup.add_argument("--database-url", metavar="URL", help="a PostgreSQL database, tried before [SQLite]")
    setup.add_argument(
        "--ca-cert", type=Path, metavar="FILE", help="the site's authority, and those above it [a new one]"
    )
    setup.add_argument("--ca-key", type=Path, metavar="FILE", help="its private key, which is not copied")
    setup.add_argument(
        "--workers", type=Path, metavar="FILE", help="a directory for each host of this list, one a line"
    )
    setup.add_argument("--worker", action="append", metavar="HOST", help="a directory for this host; may be repeated")
    setup.add_argument(
        "--joins",
        action="store_true",
        help="let workers join by tokens (lark join); the controller's user then reads the private authority's key",
    )
    setup.add_argument(
        "--days", type=days, default=1825, help="how long certificates are good that are made now [1825]"
    )
    setup.add_argument(
        "--renew", action="store_true", help="make certificates anew that end within 30 days or lack a name"
    )
    setup.add_argument("--directory", type=Path, default=Path("/etc/lark"), metavar="DIR", help="[/etc/lark]")
    setup.add_argument("--user", default="lark", help="the user that the controller runs as [lark]")
    _with_json(setup)


def _token_command(subparsers: Any) -> None:
    token = _command(subparsers, "token", tokens.run)
    token.add_argument("name", nargs="?", help="what the audit trail calls whoever uses it")
    token.add_argument("--scope", action="append", choices=("hook", "read", "operate", "self", "gateway"))
    token.add_argument(
        "--user", metavar="OWNER", help="with the scope self: the user whose own jobs it shows, and nobody else's"
    )
    token.add_argument(
        "--host",
        action="append",
        metavar="HOST",
        help="with the scope hook: good for the jobs of this host alone, a name or a pattern such as *.example",
    )
    token.add_argument("--expires", type=day, metavar="YYYY-MM-DD", help="not valid from this day on")
    token.add_argument(
        "--output", type=Path, metavar="FILE", help="write it to this file, mode 0600; nothing is printed"
    )
    token.add_argument("--workers", type=Path, metavar="FILE", help="a token for each host of this list, one a line")
    token.add_argument("--directory", type=Path, metavar="DIR", help="where --workers puts them, each in HOST.token")
    token.add_argument("--owner", metavar="USER", help="whose the written files are")
    token.add_argument("--list", action="store_true", help="list the tokens of the file, and what each is good for")
    token.add_argument("--file", type=Path, help="the tokens file [LARK_TOKENS_FILE]")
    _with_json(token)


def _join_commands(subparsers: Any) -> None:
    join = subparsers.add_parser("join", help="Let workers join by a token, or show who has.")
    actions = join.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = _remote(actions, "add", joins.add)
    add.add_argument("host", nargs="*", metavar="HOST", help="a worker, as Machine in its slots' ads has it")
    add.add_argument("--hosts", type=Path, metavar="FILE", help="those of this list, one a line")
    add.add_argument(
        "--expires", type=span, default=7200.0, metavar="TIME", help="how long it is good: 30m, 2h, 7d at most [2h]"
    )
    _remote(actions, "list", joins.show, watched=True)
    remove = _remote(actions, "remove", joins.remove)
    remove.add_argument("id", help="as `lark join list` shows it")
    _remote(actions, "workers", joins.workers, watched=True)
    revoke = _remote(actions, "revoke", joins.revoke)
    revoke.add_argument("host", metavar="HOST", help="as `lark join workers` shows it")


def _reserve_commands(subparsers: Any) -> None:
    reserve = subparsers.add_parser("reserve", help="Reserve bandwidth, or show what is reserved and what is left.")
    actions = reserve.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = _remote(actions, "add", commands.reserve_add)
    add.add_argument("src", help="a job (103.0, its id or address), or a host of the topology")
    add.add_argument("dst", help="the same, or wan, or an address or network")
    add.add_argument("rate", type=rate, help="of L2 bytes: 250Mbit, 1.5Gbit, or a number of Mb/s")
    add.add_argument("--seconds", type=duration, help="how long [as long as its jobs live]")
    add.add_argument(
        "--steady", action="store_true", help="the rate is the most as well [what is free may be used, too]"
    )
    listed = _remote(actions, "list", commands.reserve_list, watched=True)
    listed.add_argument("--job", help=f"only those of {_JOB}, and flows that go to it")
    show = _remote(actions, "show", commands.reserve_show)
    show.add_argument("reservation")
    change = _remote(actions, "change", commands.reserve_change)
    change.add_argument("reservation")
    change.add_argument("--rate", type=rate, help="the new rate: 250Mbit, 1.5Gbit, or a number of Mb/s")
    change.add_argument("--seconds", type=duration, help="it ends in so many seconds")
    steady = argparse.BooleanOptionalAction
    change.add_argument("--steady", action=steady, default=None, help="the rate is the most as well, or not")
    release = _remote(actions, "release", commands.reserve_release)
    release.add_argument("reservation")
    _remote(actions, "links", commands.reserve_links, watched=True)


def _external_commands(subparsers: Any) -> None:
    top = subparsers.add_parser("external", help="Give jobs addresses at which they are reached from outside.")
    actions = top.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = _remote(actions, "add", external.add)
    add.add_argument("job", help=_JOB)
    add.add_argument("open", nargs="*", help="tcp/80, udp/5000-5010, icmp, any [all that the policy opens]")
    add.add_argument("--seconds", type=duration, help="how long [as long as the policy lets it]")
    add.add_argument(
        "--family", choices=("ipv4", "ipv6"), help="ipv6 opens the job's own [IPv4 where the policy gives it]"
    )
    add.add_argument("--name", help="the first label of its name in the DNS [none]")
    add.add_argument("--reservation", metavar="ID", help="a reserved flow of the job with which it ends [none]")
    listed = _remote(actions, "list", external.show, watched=True)
    listed.add_argument("--job", help=f"only that of {_JOB}")
    for name, run in (("show", external.status), ("release", external.release)):
        _remote(actions, name, run).add_argument("id", help="as `lark external list` shows it")


def _policy_commands(subparsers: Any) -> None:
    policy = subparsers.add_parser(
        "policy", help="Show the policy in force and those before it, or put another in force."
    )
    actions = policy.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = _remote(actions, "show", commands.policy_show)
    put = _remote(actions, "put", commands.policy_put)
    put.add_argument("file", type=Path)
    history = _remote(actions, "history", commands.policy_history)
    history.add_argument("--limit", type=count, default=20, help="how many [20]")
    show.add_argument("version", type=count, nargs="?", help="another version than the one in force")
    diff = _remote(actions, "diff", commands.policy_diff)
    diff.add_argument("old", type=count, metavar="OLD", help="a version")
    diff.add_argument("new", type=count, nargs="?", metavar="NEW", help="another one [the one in force]")
    back = _remote(actions, "back", commands.policy_back)
    back.add_argument("version", type=count)
    back.add_argument("--plan", action="store_true", help="change nothing; show what it would change, as `lark plan`")
    _with_details(back)


def _with_details(made: argparse.ArgumentParser) -> None:
    made.add_argument("--jobs", action="store_true", help="list the jobs that would be treated otherwise")
    made.add_argument("--flows", action="store_true", help="list the flows that would change on each switch")


def _database_commands(subparsers: Any) -> None:
    database = subparsers.add_parser("db", help="The database's schema.")
    actions = database.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run in (("upgrade", commands.db_upgrade), ("version", commands.db_version)):
        action = _command(actions, name, run)
        action.add_argument("--database-url", help="[LARK_DATABASE_URL]")
        action.add_argument("--state-dir", help="[LARK_STATE_DIR]")
        _with_json(action)


def _command(subparsers: Any, name: str, run: Run) -> argparse.ArgumentParser:
    """A command, whose help is the first sentence of what runs it."""
    text = run.__doc__ or ""
    made: argparse.ArgumentParser = subparsers.add_parser(name, help=text, description=text)
    made.set_defaults(run=run, watch=None)
    return made


def _remote(subparsers: Any, name: str, run: Run, *, watched: bool = False) -> argparse.ArgumentParser:
    """A command that calls a running controller; with ``watched`` it can be shown again and again."""
    made = _command(subparsers, name, run)
    made.add_argument("--url", default=os.environ.get("LARK_URL", DEFAULT_URL), help="the controller [LARK_URL]")
    made.add_argument("--token-file", type=Path, help="a file with the token [LARK_TOKEN_FILE; LARK_TOKEN]")
    made.add_argument(
        "--munge", action="store_true", default=bool(os.environ.get("LARK_MUNGE")),
        help="a MUNGE credential instead of a token, for the own jobs [LARK_MUNGE]",
    )  # fmt: skip
    made.add_argument("--ca", default=os.environ.get("LARK_CA"), help="CA certificates to trust [LARK_CA]")
    if watched:
        made.add_argument(
            "--watch", type=seconds, nargs="?", const=5.0, metavar="SECONDS", help="again and again, every SECONDS [5]"
        )
    _with_json(made)
    return made


def _with_json(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="print JSON")
