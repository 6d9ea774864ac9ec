"""``lark-worker setup``: join a site's controllers, make the bridge, start the service. A second run changes nothing.

Every step looks first whether it is done, so that a run that was cut short is completed by the next.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lark_common.controllers import urls
from lark_common.errors import SettingError
from lark_common.runs import Address
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError, RefusedError
from lark_worker.given_controllers import digest, has_all, seen
from lark_worker.join import URL, Joined, Place, has_certificate, join, merged, read_join_token, verify
from lark_worker.network import own_bridge
from lark_worker.network.commands import run
from lark_worker.records.atomic_file import write_atomically
from lark_worker.settings import Settings, load, with_file

SYSTEMD: Final = Path("/run/systemd/system")
UNIT: Final = "lark-worker.service"
BASE_FLOWS_UNIT: Final = "lark-base-flows.service"
# Milliseconds of silence after which the switch's database asks a controller whether it is there.
DATABASE_PROBE: Final = 60_000
_PROGRAMS: Final = ("ip", "openssl", "ovs-vsctl")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A unit counts as started when its service answers.
_START_SECONDS: Final = 90.0
_CONNECT_SECONDS: Final = 10.0
_TRY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Wish:
    """The command's arguments. Without ``interface`` the bridge is there already; without ``addresses``, which are as
    many as controllers, the switch connects to those at which REST was reached."""

    controllers: tuple[str, ...]
    token: str
    host: str
    place: Place
    interface: str = ""
    kind: str = "ovs"
    datapath_id: str = ""
    patience: float = 15.0
    addresses: tuple[Address, ...] = ()

    @property
    def urls(self) -> str:
        """The controllers as the settings have them."""
        return ",".join(self.controllers)


def steps(wish: Wish) -> Iterator[str]:
    """Do each step, and yield a sentence of it. Raises LarkError with what to do, where a step fails."""
    if os.geteuid() != 0:
        raise SettingError("run it as root: it writes /etc/lark, and changes Open vSwitch")
    gone = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if gone:
        raise SettingError(f"not installed: {', '.join(gone)}; install them, and run this again")
    if wish.addresses and len(wish.addresses) != len(wish.controllers):
        count = len(wish.controllers)
        raise SettingError(f"--address: accepted: none, or {count}, one for each of --controller in the same order")
    before = _as_before(wish)
    if before is not None:
        joined, away = before
        yield f"{joined.host} has joined {wish.urls} already"
    else:
        if not wish.token:
            raise SettingError(f"--join is needed: on the controller, lark join add {wish.host}")
        token = read_join_token(wish.token)
        shown = seen(wish.controllers, token.pin, "the join token names")
        joined, away = join(shown, token, wish.host, wish.place), shown.away
        words = f"token, key, certificate and authority are in {wish.place.directory}"
        yield f"joined {','.join(shown.there)} as {joined.host}: {words}"
    for reason in away.values():
        yield f"{reason} It is in the list all the same, and lark-worker check asks it again"
    joined = replace(joined, settings={**joined.settings, URL: wish.urls})
    is_new, kept = _write_settings(wish, joined)
    yield f"settings: {wish.place.settings}"
    for name in kept:
        yield f"kept as it is there: {name} (the controller gives {joined.settings[name]})"
    settings = load(with_file(os.environ, wish.place.settings))
    _remember(settings.state_dir, joined)
    yield from _bridge(wish, settings, joined)
    yield from _service(is_new)


def _as_before(wish: Wish) -> tuple[Joined, Mapping[str, str]] | None:
    """The answer of when this worker joined one of these controllers, and the reasons of those that are new and do not
    answer; None where it has not, or its certificate ends soon."""
    settings, authority = load(with_file(os.environ, wish.place.settings)), wish.place.authority
    known = urls(settings.url)
    new = [each for each in wish.controllers if not has_all(known, (each,))]
    if len(new) == len(wish.controllers) or not has_certificate(wish.place):
        return None
    try:
        shown = seen(new, digest(authority.read_text("utf-8", "replace")), f"{authority} has")
        verify(shown.there, wish.place)
    except (AwayError, RefusedError):
        # With a token it joins, perhaps by another authority than before.
        if not wish.token:
            raise
        return None
    try:
        ControllerLink(replace(settings, url=",".join((*known, *shown.there)))).renew(wish.host, ())
        found = json.loads(_memory(settings.state_dir).read_text("utf-8"))
        joined = Joined(found["host"], found["settings"], found["openflow_port"], found["ovsdb_port"])
    except (AwayError, SettingError, OSError, ValueError, KeyError):
        return None
    return joined, shown.away


def _memory(state_dir: Path) -> Path:
    return state_dir / "joined.json"


def _remember(state_dir: Path, joined: Joined) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(_memory(state_dir), json.dumps(asdict(joined)))
    except OSError as error:
        raise SettingError(f"{state_dir}: cannot be written: {error.strerror or error}") from None


def _write_settings(wish: Wish, joined: Joined) -> tuple[bool, tuple[str, ...]]:
    """True where the file has changed, and the settings that stay as the site has them."""
    path = wish.place.settings
    try:
        before = path.read_text("utf-8", "replace") if path.exists() else ""
        text, kept = merged(before, joined.settings)
        # Refused here, with what is accepted, and not by a service that does not start.
        with_new = path.with_suffix(".tried")
        write_atomically(with_new, text)
        try:
            load(with_file(os.environ, with_new))
        finally:
            with_new.unlink(missing_ok=True)
        if text != before:
            write_atomically(path, text)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written: {error.strerror or error}") from None
    return text != before, kept


def _bridge(wish: Wish, settings: Settings, joined: Joined) -> Iterator[str]:
    command = ["ovs-vsctl", "--timeout=20", f"--db={settings.ovs_database}"]
    bridge = settings.bridge
    if wish.interface:
        bridges = own_bridge.OwnBridge(settings.state_dir, settings.ovs_database)
        moved = bridges.make(bridge, wish.interface, wish.kind, wish.datapath_id, wish.patience)
        yield from own_bridge.messages(moved, made=True)
        yield from _base_flows(wish, bridge)
    elif bridge not in run([*command, "list-br"]).split():
        raise NetworkError(
            f"Open vSwitch has no bridge {bridge}: name the interface that is to be its uplink (--interface eth0), or "
            "make the bridge, and run this again"
        )
    files = (wish.place.key, wish.place.certificate, wish.place.authority)
    if not all(str(file) in run([*command, "get-ssl"]) for file in files):
        run([*command, "set-ssl", *map(str, files)])
    targets: dict[str, bool] = {}
    for number, url in enumerate(wish.controllers):
        address, answers = _address(wish, number)
        if address:
            target = f"ssl:{_bracketed(address)}:{joined.openflow_port}"
            targets[target] = targets.get(target, False) or answers
        else:
            yield f"{bridge} is not to connect to {url}, whose address is not known here; name all by --address"
    if not targets:
        raise AwayError(f"{wish.urls} cannot be reached; name the address for switches by --address")
    # The site may have named more.
    if not targets.keys() <= {*run([*command, "get-controller", bridge]).split()}:
        run([*command, *_pointing(bridge, targets)])
    yield f"{bridge} connects to {', '.join(targets)}"
    _await_connections([*command, "--format=json", "--columns=target,is_connected", "list", "controller"], targets)
    if joined.ovsdb_port is not None:
        # Without an address the database listens for IPv4 alone; the controller comes from where it is.
        listens = f"pssl:{joined.ovsdb_port}" + (":[::]" if any("[" in target for target in targets) else "")
        managers = run([*command, "get-manager"]).split()
        if not any(each == listens or each.startswith(f"{listens}:") for each in managers):
            # One controller has thousands of databases, and each would ask it every 5 s whether it is there.
            probe = ["--", "set", "manager", listens, f"inactivity_probe={DATABASE_PROBE}"]
            run([*command, "set-manager", *managers, listens, *probe])
        yield f"the switch's database listens at {listens}: let a packet filter admit controllers alone"


def _pointing(bridge: str, targets: Iterable[str]) -> Iterator[str]:
    """The arguments by which a bridge has these controllers, and no others."""
    options = ("connection_mode=out-of-band", "max_backoff=1000", "inactivity_probe=5000")
    names = []
    for number, target in enumerate(targets):
        names.append(f"@c{number}")
        yield from ("--", f"--id=@c{number}", "create", "controller", f'target="{target}"', *options)
    yield from ("--", "set", "bridge", bridge, f"controller={','.join(names)}")


def _await_connections(command: Sequence[str], targets: Mapping[str, bool]) -> None:
    """Wait until a switch has connected to the controllers that answer, as long as it may take: the check has the
    reason where it has not."""
    awaited = {target for target, answers in targets.items() if answers}
    deadline = time.monotonic() + _CONNECT_SECONDS
    while time.monotonic() < deadline:
        if awaited <= {target for target, connected in json.loads(run(command))["data"] if connected}:
            return
        time.sleep(_TRY_SECONDS)


def _base_flows(wish: Wish, bridge: str) -> Iterator[str]:
    """The unit that loads the base flows again when Open vSwitch starts anew."""
    path = wish.place.directory / "base-flows.env"
    if wish.kind == "linux":
        return
    try:
        if not path.exists():
            write_atomically(path, f"LARK_BRIDGE={bridge}\nLARK_UPLINKS={wish.interface}\n", 0o644)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written: {error.strerror or error}") from None
    if SYSTEMD.is_dir():
        run(["systemctl", "enable", "--now", BASE_FLOWS_UNIT], seconds=_START_SECONDS)
        yield f"{BASE_FLOWS_UNIT} keeps its base flows"


def _service(is_new: bool) -> Iterator[str]:
    if not SYSTEMD.is_dir():
        yield "there is no systemd here: start `lark-worker run` by what starts services"
        return
    # One that ran before has the former settings.
    run(["systemctl", "enable", UNIT], seconds=_START_SECONDS)
    run(["systemctl", "restart" if is_new else "start", UNIT], seconds=_START_SECONDS)
    yield f"{UNIT} runs"


def _address(wish: Wish, number: int) -> tuple[str, bool]:
    """The address of a controller, since Open vSwitch need not know names, ``""`` where it is not known; and True where
    something answers there."""
    parts = urlsplit(wish.controllers[number])
    to = parts.hostname or "", parts.port or 443
    with suppress(OSError), socket.create_connection(to, _CONNECT_SECONDS) as connection:
        return str(wish.addresses[number] if wish.addresses else connection.getpeername()[0]), True
    if wish.addresses:
        return str(wish.addresses[number]), False
    with suppress(OSError):
        return str(socket.getaddrinfo(*to, type=socket.SOCK_STREAM)[0][4][0]), False
    return "", False


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
