"""The DHCP client without a network: bytes, leases, states; time is a number."""

from __future__ import annotations

import itertools
import math
import socket
import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_worker.dhcp import channel
from lark_worker.dhcp.apply import resolv_text, steps
from lark_worker.dhcp.clients import Clients
from lark_worker.dhcp.lease import RENEWS_AFTER, SHORTEST, Cache, Lease, Route, granted
from lark_worker.dhcp.message import EVERYBODY, NOWHERE, Kind, Message, Option, decode, encode, packet, payload
from lark_worker.dhcp.protocol import Bound, Client, Ignored, Lost, Outcome, Send, State

MAC = bytes.fromhex("020000000001")
ADDRESS, OTHER, SERVER = IPv4Address("10.64.0.7"), IPv4Address("10.64.0.8"), IPv4Address("10.64.0.4")
LEASE = Lease(ADDRESS, 16, SERVER, 0.0, 500.0, 875.0, 1000.0)


def answer(question: Message, kind: Kind, yours: IPv4Address = ADDRESS, seconds: int = 1000, **more: bytes) -> Message:
    options: dict[int, bytes] = {Option.SERVER: SERVER.packed, Option.LEASE: struct.pack("!I", seconds)}
    options |= {Option[name]: value for name, value in more.items()}
    return Message(kind, question.xid, question.mac, yours=yours, options=options)


def sent(outcomes: list[Outcome]) -> Send:
    (one,) = (each for each in outcomes if isinstance(each, Send))
    return one


def a_client(cached: Lease | None = None, *, held: bool = False) -> Client:
    return Client(MAC, Random(1), cached, held=held)


def bound(client: Client, now: float = 0.0, seconds: int = 1000) -> Lease:
    discover = sent(client.start(now))
    request = sent(client.receive(answer(discover.message, Kind.OFFER), now))
    (outcome,) = client.receive(answer(request.message, Kind.ACK, seconds=seconds), now)
    assert isinstance(outcome, Bound)
    return outcome.lease


def test_a_new_client_discovers_and_requests_what_is_offered() -> None:
    client = a_client()
    discover = sent(client.start(5.0))
    assert (discover.message.kind, discover.source, discover.target) == (Kind.DISCOVER, NOWHERE, EVERYBODY)
    assert Option.REQUESTED not in discover.message.options
    request = sent(client.receive(answer(discover.message, Kind.OFFER), 5.1)).message
    assert (request.kind, request.client) == (Kind.REQUEST, NOWHERE)
    assert request.options[Option.REQUESTED] == ADDRESS.packed
    assert request.options[Option.SERVER] == SERVER.packed
    (outcome,) = client.receive(answer(request, Kind.ACK), 5.2)
    assert isinstance(outcome, Bound)
    # Counted from the question, so that the server never counts less (RFC 2131, section 4.4.1).
    assert outcome.lease == Lease(ADDRESS, 32, SERVER, 5.1, 505.1, 880.1, 1005.1)
    assert not client.waits_for_answers


def test_a_cached_lease_is_asked_for_without_a_server() -> None:
    request = sent(a_client(LEASE).start(10.0)).message
    assert (request.kind, request.client) == (Kind.REQUEST, NOWHERE)
    assert request.options[Option.REQUESTED] == ADDRESS.packed
    assert Option.SERVER not in request.options


def test_a_cached_lease_that_nobody_answers_for_is_discovered_anew_and_may_be_used() -> None:
    client = a_client(LEASE)
    kinds = [sent(client.start(0.0)).message.kind]
    while client.state is State.REBOOTING:
        kinds.append(sent(client.tick(client.wakes)).message.kind)
    assert kinds == [Kind.REQUEST] * 3 + [Kind.DISCOVER]
    assert client.wakes < 3.0
    (outcome,) = client.take_cached(2.0)
    assert outcome == Bound(LEASE)
    assert (client.state, client.wakes) == (State.BOUND, 500.0)
    # After its time is over, it is nobody's.
    late = a_client(LEASE)
    late.start(10.0)
    assert late.take_cached(1000.0) == []


def test_a_refused_cached_lease_is_forgotten() -> None:
    client = a_client(LEASE)
    request = sent(client.start(0.0)).message
    discover = sent(client.receive(answer(request, Kind.NAK), 0.1)).message
    assert discover.kind is Kind.DISCOVER
    assert Option.REQUESTED not in discover.options
    assert client.take_cached(0.2) == []


def test_a_server_that_offers_and_refuses_is_asked_more_and_more_seldom() -> None:
    client = a_client()
    now, times = 0.0, []
    outcomes = client.start(now)
    for _ in range(6):
        discover = sent(outcomes)
        times.append(now)
        request = sent(client.receive(answer(discover.message, Kind.OFFER), now))
        outcomes = client.receive(answer(request.message, Kind.NAK), now)
        if not outcomes:
            now = client.wakes
            outcomes = client.tick(now)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 16


def test_a_server_that_refuses_for_weeks_and_one_that_is_silent_are_asked_on() -> None:
    client, now = a_client(), 0.0
    outcomes = client.start(now)
    for _ in range(20_000):
        discover = sent(outcomes)
        request = sent(client.receive(answer(discover.message, Kind.OFFER), now))
        outcomes = client.receive(answer(request.message, Kind.NAK), now)
        if not outcomes:
            now = client.wakes
            outcomes = client.tick(now)
    assert 60 < client.wakes - now < 70 or outcomes
    silent, asked = a_client(), 0.0
    silent.start(0.0)
    for _ in range(20_000):
        asked = silent.wakes
        assert sent(silent.tick(asked)).message.kind is Kind.DISCOVER
    assert 57 < silent.wakes - asked < 71


def test_of_a_flood_of_answers_few_are_read_before_others_have_their_turn() -> None:
    packets = itertools.repeat(packet(SERVER, ADDRESS, b"rubbish"))
    read = 0

    class Flooded:
        """A socket on which packets arrive without end."""

        def recv(self, _size: int) -> bytes:
            nonlocal read
            read += 1
            return next(packets)

    flooded = object.__new__(channel.Channel)
    flooded._raw = flooded._udp = cast(Any, Flooded())
    assert flooded.receive() == []
    assert read == 2 * channel.MOST


def test_renewing_rebinding_and_expiry_come_in_their_time() -> None:
    client = a_client()
    lease = bound(client)
    assert client.tick(499.0) == []
    assert client.wakes == lease.renews == 500.0
    renewal = sent(client.tick(500.0))
    assert (renewal.target, renewal.source, renewal.message.client) == (SERVER, ADDRESS, ADDRESS)
    # Neither option may be in it (RFC 2131, table 5).
    assert not {Option.REQUESTED, Option.SERVER} & set(renewal.message.options)
    at = []
    while client.wakes < 875.0:
        at.append(client.wakes)
        assert sent(client.tick(client.wakes)).target == SERVER
    assert at[0] == 500.0 + 375.0 / 2
    assert all(later - earlier >= 60 for earlier, later in pairwise(at))
    rebinding = sent(client.tick(875.0))
    assert (rebinding.target, rebinding.message.client) == (EVERYBODY, ADDRESS)
    while client.wakes < 1000.0:
        sent(client.tick(client.wakes))
    lost, discover = client.tick(1000.0)
    assert isinstance(lost, Lost)
    assert isinstance(discover, Send)
    assert discover.message.kind is Kind.DISCOVER
    assert client.lease is None


def test_a_renewed_lease_counts_from_its_renewal() -> None:
    client = a_client()
    bound(client)
    renewal = sent(client.tick(600.0))
    (outcome,) = client.receive(answer(renewal.message, Kind.ACK), 600.5)
    assert isinstance(outcome, Bound)
    assert outcome.lease.expires == 1600.0
    assert client.wakes == 1100.0


def test_a_lease_that_is_refused_at_renewal_is_lost_at_once() -> None:
    client = a_client()
    bound(client)
    renewal = sent(client.tick(500.0))
    lost, discover = client.receive(answer(renewal.message, Kind.NAK), 500.1)
    assert isinstance(lost, Lost)
    assert sent([discover]).message.kind is Kind.DISCOVER


def test_a_server_changes_a_jobs_address_twice_a_minute_at_most() -> None:
    """A server may name any times: each change is one of the job's network, and a registration."""
    client, now = a_client(), 0.0
    changes: list[float] = []
    (out,) = client.start(now)
    while now < 3600:
        assert isinstance(out, Send)
        kind = Kind.OFFER if out.message.kind is Kind.DISCOVER else Kind.ACK
        times = {"T1": bytes((0, 0, 0, 1)), "T2": bytes((0, 0, 0, 1))}
        given = answer(out.message, kind, IPv4Address(0x0A400000 + len(changes)), 60, **times)
        (out,) = client.receive(given, now)
        if isinstance(out, Bound):
            changes.append(now)
            now = client.wakes
            (out,) = client.tick(now)
    assert min(after - before for before, after in pairwise(changes)) >= RENEWS_AFTER


def test_a_lease_of_seconds_is_none() -> None:
    client = a_client()
    request = sent(client.receive(answer(sent(client.start(0.0)).message, Kind.OFFER), 0.1))
    (out,) = client.receive(answer(request.message, Kind.ACK, seconds=int(SHORTEST) - 1), 0.2)
    assert out == Ignored("10.64.0.4 grants 59 s; at least 60 s are accepted")
    assert client.lease is None
    (out,) = client.receive(answer(request.message, Kind.ACK, seconds=int(SHORTEST)), 0.2)
    assert isinstance(out, Bound)


def test_answers_that_grant_nothing_are_one_line_of_the_log_for_each_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Short:
        """Answers what is asked with leases of ten seconds, a hundred times."""

        def __init__(self, _namespace: str, _interface: str) -> None:
            self.sides = socket.socketpair()
            self.asked: Message | None = None

        def fileno(self) -> int:
            return self.sides[0].fileno()

        def send(self, message: Message, _source: IPv4Address, _target: IPv4Address) -> None:
            self.asked = message

        def receive(self) -> list[Message]:
            assert self.asked is not None
            offers = self.asked.kind is Kind.DISCOVER
            return [answer(self.asked, Kind.OFFER)] if offers else [answer(self.asked, Kind.ACK, seconds=10)] * 100

        def close(self) -> None:
            for each in self.sides:
                each.close()

    served = Clients(Cache(tmp_path), "eth0", lambda _job: None, opens=cast(Any, Short), clock=lambda: 0.0)
    for number in (1, 2):
        served.begin(f"job{number}", f"02:00:00:00:00:0{number}", "job")
    for running in served._running.values():
        served._receive(running, 0.0)
        served._receive(running, 0.0)
    served.stop()
    found = [each.__dict__["lark_fields"] for each in caplog.records if "grants no lease" in each.getMessage()]
    reason = "10.64.0.4 grants 10 s; at least 60 s are accepted"
    assert [(each["job"], each["reason"]) for each in found] == [("job1", reason), ("job2", reason)]


def test_a_held_lease_goes_on_where_it_stood() -> None:
    client = a_client(LEASE, held=True)
    assert client.start(10.0) == []
    assert client.wakes == 500.0
    assert sent(a_client(LEASE, held=True).start(600.0)).target == SERVER
    assert sent(a_client(LEASE, held=True).start(900.0)).target == EVERYBODY


def test_a_lease_without_end_asks_nothing_more() -> None:
    client = a_client()
    lease = bound(client, seconds=0xFFFFFFFF)
    assert math.isinf(lease.expires)
    assert math.isinf(client.wakes)


def test_what_is_not_for_this_client_changes_nothing() -> None:
    client = a_client()
    discover = sent(client.start(0.0)).message
    offer = answer(discover, Kind.OFFER)
    for other in (
        replace(offer, xid=offer.xid ^ 1),
        replace(offer, mac=bytes(6)),
        replace(offer, kind=Kind.ACK),
        replace(offer, options={}),
    ):
        assert client.receive(other, 0.1) == []
    request = sent(client.receive(offer, 0.1)).message
    assert client.receive(answer(request, Kind.ACK, yours=NOWHERE), 0.2) == [Ignored("address or server is missing")]
    assert client.receive(answer(request, Kind.ACK, seconds=0), 0.2)[1:] == []
    assert client.lease is None
    assert client.waits_for_answers


def test_messages_survive_the_wire() -> None:
    message = Message(
        Kind.REQUEST, 0xDEADBEEF, MAC, client=ADDRESS, seconds=70000, options={Option.CLIENT: b"\x01" + MAC}
    )
    data = encode(message)
    assert len(data) >= 300
    assert struct.unpack_from("!H", data, 8) == (0xFFFF,)
    # As a server would send it back.
    back = decode(b"\x02" + data[1:])
    assert (back.kind, back.xid, back.mac, back.client) == (Kind.REQUEST, 0xDEADBEEF, MAC, ADDRESS)
    assert back.options[Option.CLIENT] == b"\x01" + MAC
    whole = packet(ADDRESS, EVERYBODY, data)
    with pytest.raises(ValueError, match="ports"):
        payload(whole)
    assert payload(whole[:20] + struct.pack("!HH", 67, 68) + whole[24:]) == data
    words = struct.unpack("!10H", whole[:20])
    assert sum(words) % 0xFFFF == 0


def test_options_in_parts_and_in_the_fields_for_names_are_read() -> None:
    data = bytearray(encode(Message(Kind.OFFER, 1, MAC)))
    data[0] = 2
    head, cookie = data[:236], data[236:240]
    head[108:113] = bytes((Option.ROUTERS, 4, 10, 64, 0))
    head[113:115] = bytes((1, 0xFF))
    options = bytes((53, 1, 2, 52, 1, 1, 6, 2, 10, 64, 6, 2, 0, 53, 255))
    found = decode(bytes(head + cookie) + options)
    assert found.options[Option.NAMESERVERS] == bytes((10, 64, 0, 53))
    assert found.options[Option.ROUTERS] == bytes((10, 64, 0, 1))


@given(st.binary(max_size=600))
def test_rubbish_is_refused_and_nothing_else_happens(data: bytes) -> None:
    for read in (payload, decode):
        try:
            read(data)
        except ValueError:
            continue


@given(st.binary(max_size=80))
def test_rubbish_for_options_is_refused_and_nothing_else_happens(options: bytes) -> None:
    data = bytearray(encode(Message(Kind.ACK, 1, MAC, yours=ADDRESS)))[:240]
    data[0] = 2
    try:
        granted(decode(bytes(data) + options), 0.0)
    except ValueError:
        return


def test_routes_of_option_121_replace_the_router() -> None:
    question = Message(Kind.DISCOVER, 1, MAC)
    routes = bytes((0, 10, 64, 0, 2, 24, 192, 0, 2, 10, 64, 0, 3, 32, 10, 0, 0, 9, 0, 0, 0, 0))
    message = answer(question, Kind.ACK, ROUTERS=bytes((10, 64, 0, 1)), ROUTES=routes, MASK=bytes((255, 255, 0, 0)))
    lease = granted(message, 0.0)
    assert lease.interface == "10.64.0.7/16"
    assert lease.routes == (
        Route(IPv4Network("0.0.0.0/0"), IPv4Address("10.64.0.2")),
        Route(IPv4Network("192.0.2.0/24"), IPv4Address("10.64.0.3")),
        Route(IPv4Network("10.0.0.9/32"), NOWHERE),
    )
    assert "route replace 10.0.0.9/32 scope link dev eth0 src 10.64.0.7" in steps(lease, "", "eth0", 1500)
    only = answer(question, Kind.ACK, ROUTERS=bytes((10, 64, 0, 1, 10, 64, 0, 2)))
    assert [str(route.gateway) for route in granted(only, 0.0).routes] == ["10.64.0.1"]


def test_an_mtu_may_be_less_than_the_sites_and_not_more() -> None:
    for mtu, shown in ((1400, 1400), (9000, 1500), (576, 1500), (0, 1500)):
        assert f"link set eth0 mtu {shown}" in steps(replace(LEASE, mtu=mtu), "", "eth0", 1500)


def test_names_that_are_no_names_stay_out_of_resolv_conf() -> None:
    for text, shown in ((b"jobs.example\0", "jobs.example"), (b"a\nnameserver 6.6.6.6", ""), (b"", "")):
        message = answer(Message(Kind.DISCOVER, 1, MAC), Kind.ACK, DOMAIN=text, NAMESERVERS=SERVER.packed)
        lease = granted(message, 0.0)
        assert lease.domain == shown
        assert resolv_text(lease, ()).splitlines()[-1] == f"nameserver {SERVER}"
    assert resolv_text(LEASE, (OTHER,)) == f"nameserver {OTHER}\n"


def test_the_cache_gives_back_what_it_got_as_long_as_it_lasts(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "leases")
    full = replace(LEASE, routes=(Route(IPv4Network("0.0.0.0/0"), SERVER),), nameservers=(SERVER,), domain="a.b", mtu=9)
    endless = replace(full, expires=math.inf)
    cache.write("02:00:00:00:00:01", full)
    cache.write("02:00:00:00:00:02", endless)
    (tmp_path / "leases" / "020000000003.json").write_text('{"address": "10.6')
    assert cache.read("02:00:00:00:00:01", 999.0) == full
    assert cache.read("02:00:00:00:00:01", 1000.0) is None
    assert cache.read("02:00:00:00:00:02", 1e12) == endless
    assert cache.read("02:00:00:00:00:03", 0.0) is None
    assert cache.sweep(1000.0) == 2
    assert [path.name for path in (tmp_path / "leases").iterdir()] == ["020000000002.json"]
