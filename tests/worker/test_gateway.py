"""External addresses on a plain Linux gateway: real namespaces, nftables and connections."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from typing import Any

import pytest

from lab.namespaces import INNER, Host, Net
from lab.run import run
from lark_worker.errors import AwayError, NetworkError
from lark_worker.network.commands import inside
from lark_worker.network.commands import run as nft
from lark_worker.rules import gateway
from lark_worker.rules.gateway import Gateway, Place
from tests.e2e.test_external import BEYOND, IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_RECVERR, told
from tests.fixtures.rest_socket import served as over_socket
from tests.fixtures.service import wait
from tests.fixtures.wires import open_socket

__all__ = ["over_socket"]

pytestmark = pytest.mark.ovs

POOL, FIRST, SECOND = "198.51.100.64/30", "198.51.100.65", "198.51.100.66"
OUTSIDE = "192.0.2.7"


class Told:
    """A controller as far as a gateway asks it; it tells everything, or with ``before`` what has changed since."""

    def __init__(self) -> None:
        self.addresses: list[dict[str, Any]] = []
        self.away = False
        self.before: dict[str, dict[str, Any]] | None = None
        self.asked: list[tuple[str, float]] = []
        self.words: list[dict[str, Any]] = []
        self.more = False

    def passed(self, call: Callable[[Any], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if self.away:
            raise AwayError("away")
        return 200, call(self)

    def external_translations(self, after: str, wait: float) -> dict[str, Any]:
        self.asked.append((after, wait))
        told, gone = self.addresses, list[str]()
        if whole := self.before is None or not after:
            now = {}
        else:
            now = {each["address"]: each for each in self.addresses}
            told = [each for external, each in now.items() if self.before.get(external) != each]
            gone = [external for external in self.before if external not in now]
        if self.before is not None:
            self.before = {each["address"]: dict(each) for each in self.addresses}
        number = len(self.asked)
        return {"revision": f"{number}", "whole": whole, "more": self.more, "translations": told, "gone": gone}

    def confirm_external_translations(self, word: dict[str, Any]) -> dict[str, Any]:
        self.words.append(word)
        return word

    def give(self, external: str, own: str | None, *opened: str) -> None:
        self.addresses.append({"address": external, "inside": own, "open": list(opened)})


class Site:
    """Jobs ``a`` and ``b`` inside, a gateway, and the host ``out`` outside, which routes the pool to the gateway."""

    def __init__(self, net: Net) -> None:
        self.a = net.host("a", addresses=["10.64.0.1/24"], gateway=["10.64.0.254"])
        self.b = net.host("b", addresses=["10.64.0.2/24"], gateway=["10.64.0.254"])
        self.out = net.host("out", addresses=[f"{OUTSIDE}/24"])
        self.gateway = net.host("gate")
        there = ["ip", "-n", self.gateway.namespace]
        run([*there, "link", "add", "lan", "type", "bridge"])
        for host, name in ((self.a, "la"), (self.b, "lb"), (self.out, "wan")):
            run(["ip", "link", "set", host.port, "netns", self.gateway.namespace, "name", name])
            run([*there, "link", "set", name, "up", *(["master", "lan"] if name != "wan" else [])])
        run([*there, "link", "set", "lan", "up"])
        run([*there, "address", "add", "10.64.0.254/24", "dev", "lan"])
        run([*there, "address", "add", "192.0.2.254/24", "dev", "wan"])
        run(["ip", "netns", "exec", self.gateway.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
        for network in (POOL, "10.64.0.0/24"):
            run(["ip", "-n", self.out.namespace, "route", "add", network, "via", "192.0.2.254", "dev", INNER])
        self.told = Told()
        self.start()

    def start(self, connections: int = 4096) -> None:
        place = Place("wan", (IPv4Network(POOL),), (IPv4Network("10.64.0.0/24"),), connections)
        self.program = Gateway(place, self.told)  # type: ignore[arg-type]  # it asks nothing else of the link

    def step(self) -> None:
        def step() -> None:
            self.program.step()

        inside(self.gateway.namespace, step)

    def listed(self, *what: str) -> str:
        return run(["ip", "netns", "exec", self.gateway.namespace, "nft", "list", *what]).stdout


@pytest.fixture
def site() -> Iterator[Site]:
    with Net() as net:
        yield Site(net)


@contextmanager
def listening(host: Host, port: int, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    with open_socket(host, socket.AF_INET, kind) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))
        server.settimeout(20.0)
        if kind == socket.SOCK_STREAM:
            server.listen()
        yield server


def connected(source: Host, address: str, port: int, own: int = 0) -> socket.socket | None:
    client = open_socket(source, socket.AF_INET, socket.SOCK_STREAM)
    # Long enough for a second SYN and its answer on a busy machine.
    client.settimeout(4.0)
    try:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("0.0.0.0", own))
        client.connect((address, port))
    except OSError:
        client.close()
        return None
    return client


def reached(site: Site, host: Host, address: str, port: int) -> bool:
    with listening(host, port) as server:
        if (client := connected(site.out, address, port)) is None:
            return False
        with client, server.accept()[0] as called:
            assert called.getpeername()[0] == OUTSIDE
        return True


def test_what_is_open_passes_both_ways_and_nothing_else(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "tcp/80", "udp/5000-5003")
    site.told.give(SECOND, "10.64.0.2", "any")
    site.step()
    assert reached(site, site.a, FIRST, 80)
    assert not reached(site, site.a, FIRST, 81)
    assert reached(site, site.b, SECOND, 81)
    assert not reached(site, site.b, FIRST, 81)
    for host, port, source in ((site.a, 5003, FIRST), (site.a, 5004, "10.64.0.1"), (site.b, 9, SECOND)):
        with listening(site.out, 7000, socket.SOCK_DGRAM) as server, listening(host, port, socket.SOCK_DGRAM) as job:
            job.sendto(b"hi", (OUTSIDE, 7000))
            assert server.recvfrom(10)[1] == (source, port)
    # Errors come through it: nobody listens at the open port.
    with open_socket(site.out, socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((FIRST, 5001))

        def refused() -> bool:
            with suppress(OSError):
                client.send(b"hi")
            time.sleep(0.05)
            return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED

        wait(refused)
    found: dict[str, dict[str, int]] = {}
    inside(site.gateway.namespace, lambda: found.update(gateway.totals()))
    assert found[FIRST]["in_packets"] > 3
    assert found[SECOND]["out_bytes"] > 100


def test_elements_come_and_go_and_a_restart_changes_nothing(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    site.step()
    with listening(site.a, 80) as server, listening(site.b, 80) as other:
        stays = connected(site.out, FIRST, 80)
        assert stays is not None
        called = server.accept()[0]
        with stays, called:
            called.settimeout(2.0)

            def talks() -> bool:
                stays.send(b"x")
                return called.recv(1) == b"x"

            assert talks()
            site.told.give(SECOND, "10.64.0.2", "tcp/80")
            site.step()
            comes = connected(site.out, SECOND, 80, own=40001)
            assert comes is not None
            assert talks()
            with comes, other.accept()[0] as second:
                site.told.addresses.pop()
                site.step()
                second.settimeout(0.5)
                comes.send(b"x")
                # Taken back: what was established ends with it, the neighbour's does not.
                with pytest.raises(TimeoutError):
                    second.recv(1)
            assert talks()
            # Another run of the program finds the table, and puts the same; while the controller is away all stays.
            site.start()
            site.step()
            assert talks()
            before = site.listed("map", "inet", gateway.TABLE, "in_ports")
            site.told.away = True
            site.step()
            assert site.listed("map", "inet", gateway.TABLE, "in_ports") == before
            site.told.away = False
            run(["ip", "netns", "exec", site.gateway.namespace, "nft", "flush", "ruleset"])
            site.step()
            assert site.listed("map", "inet", gateway.TABLE, "in_ports") == before
            assert talks()


def test_the_next_job_at_an_address_inherits_no_connection_and_other_ports_replace_those_before(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "tcp/80-90")
    site.step()
    with listening(site.a, 80) as server:
        client = connected(site.out, FIRST, 80)
        assert client is not None
        with client, server.accept()[0] as called:
            called.settimeout(0.5)
            site.told.addresses.clear()
            site.told.give(FIRST, "10.64.0.2", "tcp/80-85", "udp/80-90")
            site.step()
            client.send(b"x")
            with pytest.raises(TimeoutError):
                called.recv(1)
    assert reached(site, site.b, FIRST, 85)
    assert not reached(site, site.b, FIRST, 86)


def test_ports_that_overlap_and_an_answer_that_is_none_cost_nobody_anything(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "tcp/80", "tcp/80-85", "tcp/83-90", "udp", "udp/53", "any", "icmp")
    site.told.give(SECOND, "10.64.0.2", "tcp/80")
    site.step()
    assert f"{FIRST} . tcp . 80-90 : 10.64.0.1" in site.listed("map", "inet", gateway.TABLE, "in_ports")
    assert reached(site, site.a, FIRST, 90)
    assert reached(site, site.b, SECOND, 80)
    # What is no opening comes into no script, and what is no answer ends nothing.
    for word in ("tcp/80 : 10.64.0.1 } ; flush ruleset", "sctp/80", "tcp/90-80", "tcp/65536", "any/80", "tcp/80\n"):
        site.told.addresses[0]["open"] = [word]
        site.step()
        maps = (site.listed("map", "inet", gateway.TABLE, name) for name in ("in_ports", "in_protocols", "in_whole"))
        assert FIRST not in "".join(maps)
        assert reached(site, site.b, SECOND, 80)
    del site.told.addresses[0]["open"]
    site.step()
    site.told.addresses[0]["open"] = ["tcp/80-90"]
    site.step()
    assert reached(site, site.a, FIRST, 90)


def test_path_mtu_and_traceroute_work_through_it(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "udp/5000-5003")
    site.step()
    there = site.out.namespace
    run(["ip", "netns", "exec", there, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
    run(["ip", "-n", there, "link", "add", "narrow", "mtu", "1280", "type", "veth", "peer", "name", "end"])
    for device in ("narrow", "end"):
        run(["ip", "-n", there, "link", "set", device, "up"])
    run(["ip", "-n", there, "route", "add", f"{BEYOND}/32", "dev", "narrow"])
    run(["ip", "-n", site.gateway.namespace, "route", "add", f"{BEYOND}/32", "via", OUTSIDE])
    with open_socket(site.a, socket.AF_INET, socket.SOCK_DGRAM) as job:
        job.bind(("10.64.0.1", 5001))
        job.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        job.connect((BEYOND, 9))
        assert job.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1500

        def narrower() -> bool:
            with suppress(OSError):
                job.send(bytes(1400))
            return job.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1280

        wait(narrower)
    # The first router on the way is the gateway, the second one is outside and knows the external address alone.
    for hops in (1, 2):
        with open_socket(site.a, socket.AF_INET, socket.SOCK_DGRAM) as job:
            job.bind(("10.64.0.1", 5002))
            job.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
            job.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            job.connect((BEYOND, 33434))
            wait(lambda: told(job) == errno.EHOSTUNREACH)
    # From outside the gateway is the hop before the job.
    with open_socket(site.out, socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        client.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        client.connect((FIRST, 5000))
        wait(lambda: told(client) == errno.EHOSTUNREACH)


def test_the_translation_follows_the_jobs_own_address(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "tcp/70-90", "tcp/80")
    site.step()
    assert reached(site, site.a, FIRST, 80)
    # What came by DHCP is the job's no more, and may be another's by now.
    site.told.addresses[0]["inside"] = None
    site.step()
    assert not reached(site, site.a, FIRST, 80)
    # Between two questions the address may have gone from one job to the other.
    site.told.addresses[0]["inside"] = "10.64.0.2"
    site.told.give(SECOND, "10.64.0.2", "tcp/80")
    site.step()
    assert reached(site, site.b, SECOND, 80)
    assert not reached(site, site.b, FIRST, 80)


def test_an_answer_that_is_none_changes_nothing(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    site.step()
    for wrong in ({}, {"inside": "10.64.0.1"}, {"inside": "10.64.0.1", "open": 1}):
        site.told.addresses = [{"address": FIRST} | wrong]
        site.step()
        assert reached(site, site.a, FIRST, 80)


def test_nobody_sends_with_an_external_address_or_comes_with_a_jobs_own(site: Site) -> None:
    site.told.give(FIRST, "10.64.0.1", "any")
    site.step()
    for host, source in ((site.b, FIRST), (site.out, SECOND), (site.out, "10.64.0.9")):
        run(["ip", "-n", host.namespace, "address", "add", f"{source}/32", "dev", INNER])
        target = site.out if host is site.b else site.a
        address = OUTSIDE if host is site.b else FIRST
        with (
            listening(target, 9, socket.SOCK_DGRAM) as server,
            open_socket(host, socket.AF_INET, socket.SOCK_DGRAM) as one,
        ):
            one.bind((source, 0))
            one.sendto(b"forged", (address, 9))
            with open_socket(site.out if host is site.out else site.a, socket.AF_INET, socket.SOCK_DGRAM) as honest:
                honest.sendto(b"honest", (address, 9))
            assert server.recv(10) == b"honest"


def test_an_address_of_another_gateway_or_of_no_job_here_is_not_mapped(site: Site) -> None:
    site.told.give("203.0.113.1", "10.64.0.1", "any")
    site.told.give(FIRST, "10.99.0.1", "any")
    site.told.give("2001:db8::1", "2001:db8::1", "any")
    site.step()
    assert "203.0.113.1" not in site.listed("ruleset")
    assert "10.99.0.1" not in site.listed("ruleset")
    with pytest.raises(NetworkError, match="an IPv4 network such as"):
        gateway.networks(["10.64.0.1/8"])


def test_a_change_touches_that_address_alone_and_is_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.told.before = {}
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    site.step()
    scripts: list[str] = []

    def noted(command: list[str], script: str = "") -> str:
        scripts.append(script)
        return nft(command, script)

    monkeypatch.setattr(gateway, "run", noted)
    site.told.give(SECOND, "10.64.0.2", "tcp/80")
    site.step()
    written = "".join(scripts)
    assert SECOND in written
    assert FIRST not in written
    assert reached(site, site.b, SECOND, 80)
    # One that gets other ports loses none that it keeps, and its counters go on.
    scripts.clear()
    site.told.addresses[0]["open"] = ["tcp/80", "tcp/82"]
    site.step()
    assert "".join(scripts).splitlines() == [
        f"add element inet lark-gateway in_ports {{ {FIRST} . tcp . 82 : 10.64.0.1 }}",
        f"add element inet lark-gateway out_ports {{ 10.64.0.1 . tcp . 82 : {FIRST} }}",
    ]
    assert reached(site, site.a, FIRST, 82)
    del site.told.addresses[0]
    site.step()
    assert not reached(site, site.a, FIRST, 80)
    assert reached(site, site.b, SECOND, 80)
    # Whoever has been told all is told it once more, as a controller does that was started again.
    site.told.before = None
    site.step()
    assert reached(site, site.b, SECOND, 80)
    assert [after for after, _ in site.told.asked] == ["", "1", "2", "3", "4"]


def test_it_is_told_of_a_change_at_once_whatever_the_controller_has_done_before(site: Site) -> None:
    def asked(times: int) -> list[float]:
        """The pauses between so many questions, the last one's included."""
        pauses: list[float] = []

        def over(pause: float) -> bool:
            pauses.append(pause)
            return len(pauses) == times

        inside(site.gateway.namespace, lambda: site.program.repeat(over, 60.0))
        assert [wait for _, wait in site.told.asked[-times:]] == [60.0] * times
        return pauses

    # The first answer comes at once, with or without addresses: the next question is the one that the controller holds.
    site.told.before = {}
    first, second = asked(2)
    assert first < 0.1
    assert second > 30.0
    # A change is taken up at once, and the rest of the time is the controller's.
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    changed, same = asked(2)
    assert changed < 0.1
    assert same > 30.0
    # One that is away may be back soon.
    site.told.away = True
    (away,) = asked(1)
    assert 1.0 < away <= 2.0
    # One that was started again tells everything once more, and nothing of it is new.
    site.told.away, site.told.before = False, None
    again, always = asked(2)
    assert again < 0.1
    # One that does so each time is not asked without a pause.
    assert always > 30.0


def test_what_the_kernel_has_is_confirmed_and_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.told.before = {}
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    site.told.give(SECOND, "10.99.0.1", "tcp/80")
    site.step()
    word = {"revision": "1", "pools": [POOL], "seconds": 0.0, "lacks": [SECOND]}
    assert site.told.words == [word]

    # The kernel refuses a change.
    def refused(*_: object) -> str:
        raise NetworkError("no")

    with monkeypatch.context() as patched:
        patched.setattr(gateway, "run", refused)
        site.told.addresses[1]["inside"] = "10.64.0.2"
        site.step()
        assert len(site.told.words) == 1
    site.step()
    assert site.told.words[1:] == [word | {"revision": "3", "lacks": []}]
    assert reached(site, site.b, SECOND, 80)
    # Of more than can be listed nothing is confirmed, and what is gone is lacked no more.
    monkeypatch.setattr(gateway, "_MOST_LACKING", 0)
    site.told.addresses[0]["inside"] = "10.99.0.1"
    site.step()
    assert (site.told.words[-1]["revision"], site.told.words[-1]["lacks"]) == ("", [])
    del site.told.addresses[0]
    site.step()
    assert site.told.words[-1]["revision"] == "5"


def test_a_list_without_end_is_no_controllers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MOST_ADDRESSES", 1)
    site.told.give(FIRST, "10.64.0.1", "any")
    site.step()
    site.told.give(SECOND, "10.64.0.2", "any")
    site.step()
    # What there was stays.
    assert FIRST in site.listed("ruleset")
    assert SECOND not in site.listed("ruleset")
    monkeypatch.undo()
    site.told.more = True
    site.step()
    assert SECOND not in site.listed("ruleset")
    site.told.more = False
    site.step()
    assert SECOND in site.listed("ruleset")
