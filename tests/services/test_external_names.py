"""Names of external addresses in a real BIND: added, removed, waiting with a reason, and never left behind."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from lark_common.errors import ExternalAddressError, NameServerError, StoreError
from lark_controller.api.external import ExternalStanding, ExternalState
from lark_controller.jobs.external import Association, listed
from lark_controller.jobs.external_names import FullName, NameState
from lark_controller.services.dns_updates import DnsUpdates
from lark_controller.services.external_names import ExternalNames
from lark_controller.settings import Listen
from lark_controller.store import Store
from lark_controller.store.external_addresses import Claim
from lark_controller.switches.fence import Fence
from tests.fixtures.bind import ZONE, Bind, bind, tsig_key
from tests.fixtures.databases import a_run
from tests.fixtures.service import Lark, wait

NETWORKS = (ip_network("198.51.100.0/29"), ip_network("2001:db8:1::/126"))
POLICY = """version: 1
networks: {jobs: [10.64.0.0/17], local: [10.0.0.0/8]}
external:
  pools: {public: [198.51.100.64/30]}
  zones: {jobs.example.org: 1}
  quarantine: 1
  rules:
    - {pool: public, open: [tcp], per_user: 3, names: "{name}.{owner}.jobs.example.org"}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Bind]:
    with bind() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(f"sqlite:///{tmp_path}/lark.db")
    made.migrate()
    yield made
    made.close()


def give(store: Store, number: int, label: str, networks: Any = NETWORKS[:1], **changes: Any) -> Association:
    now = time.time()
    job = store.runs.register(a_run(number, lease_until=now + 900), "", "", "hook", now).job
    full = FullName(f"{label}.{ZONE}", ZONE, 30)
    claim = Claim(job, "public", networks, listed("tcp/80"), 9, None, None, 60.0, name=full)
    return store.external_addresses.associate(replace(claim, **changes), now, "ops")


class Closing:
    """Addresses that are open, but those that a test closes."""

    def __init__(self) -> None:
        self.changes = 0
        self.known: list[Association] = []
        self.closed: dict[int, ExternalState] = {}

    def set(self, association: Association, to: ExternalState) -> None:
        self.closed[association.number] = to
        self.changes += 1

    def named(self) -> list[Association]:
        return self.known

    def standing(self, association: Association) -> ExternalStanding:
        return ExternalStanding(self.closed.get(association.number, ExternalState.OPEN), "no room")


def state(store: Store, given: Association) -> tuple[NameState, str]:
    found = store.external_addresses.find(given.id)
    assert found is not None
    return found.name_state, found.name_reason


def actions(store: Store, given: Association) -> list[str]:
    return [entry.action for entry in reversed(store.trail.page(given.job, None, 20).entries)]


def release(store: Store, given: Association) -> None:
    store.external_addresses.release(given.id, time.time(), "released", "ops")


def test_a_name_is_added_and_removed_with_its_address(store: Store, server: Bind) -> None:
    names = ExternalNames(store, DnsUpdates(server.server, server.key), None, Closing())
    given = give(store, 1, "one")
    sixth = give(store, 2, "six", NETWORKS[1:])
    assert state(store, given) == (NameState.PENDING, "")
    names.turn()
    assert state(store, given) == state(store, sixth) == (NameState.REGISTERED, "")
    assert server.addresses(f"one.{ZONE}") == [str(given.address)]
    assert server.addresses(f"six.{ZONE}", "AAAA") == [str(sixth.address)]
    names.turn()
    release(store, given)
    store.runs.end(sixth.job, time.time(), "ended", "", "hook")
    names.turn()
    assert state(store, given) == state(store, sixth) == (NameState.REMOVED, "")
    assert server.addresses(f"one.{ZONE}") == server.addresses(f"six.{ZONE}", "AAAA") == []
    assert actions(store, given) == ["register", "associate", "name added", "dissociate", "name removed"]


def test_one_that_was_never_sent_is_removed_at_once(store: Store) -> None:
    given = give(store, 1, "never")
    release(store, given)
    assert state(store, given) == (NameState.REMOVED, "")
    assert store.external_addresses.names_due(time.time() + 99, 9) == []


def test_what_others_have_made_is_neither_changed_nor_removed(store: Store, server: Bind) -> None:
    dns = DnsUpdates(server.server, server.key)
    given = give(store, 1, "www")
    ExternalNames(store, dns, None, Closing()).turn()
    assert state(store, given) == (NameState.PENDING, f"www.{ZONE} is in the zone already, for something else")
    dns.remove(given, time.time() + 5)
    assert server.addresses(f"www.{ZONE}") == ["192.0.2.80"]


def test_a_name_of_a_closed_address_is_out_of_the_zone_until_it_is_open(store: Store, server: Bind) -> None:
    addresses, dns = Closing(), DnsUpdates(server.server, server.key)
    names = ExternalNames(store, dns, None, addresses)
    given, other = give(store, 1, "shut"), give(store, 2, "stays")
    addresses.known = [given, other]
    names.turn()
    addresses.set(given, ExternalState.CLOSED)
    names.turn()
    assert state(store, given) == (NameState.WITHHELD, "the address is closed")
    assert server.addresses(f"shut.{ZONE}") == []
    assert server.addresses(f"stays.{ZONE}") == [str(other.address)]
    names.turn()
    # After a restart it stays so while the address is not known to be open.
    after = ExternalNames(store, dns, None, addresses)
    addresses.set(given, ExternalState.PENDING)
    after.turn()
    assert state(store, given)[0] is NameState.WITHHELD
    addresses.set(given, ExternalState.OPEN)
    after.turn()
    assert state(store, given) == (NameState.REGISTERED, "")
    assert server.addresses(f"shut.{ZONE}") == [str(given.address)]
    assert actions(store, given) == [
        "register",
        "associate",
        "name added",
        "name withheld",
        "name removed",
        "name added",
    ]
    addresses.set(given, ExternalState.CLOSED)
    after.turn()
    release(store, given)
    addresses.set(given, ExternalState.OVER)
    after.turn()
    assert state(store, given)[0] is NameState.REMOVED
    assert server.addresses(f"shut.{ZONE}") == []


def test_a_live_name_is_one_jobs_alone_and_then_the_next_ones(store: Store, server: Bind) -> None:
    names = ExternalNames(store, DnsUpdates(server.server, server.key), None, Closing())
    first = give(store, 1, "shared")
    with pytest.raises(ExternalAddressError, match=f"the name shared.{ZONE} is another job's"):
        give(store, 2, "shared")
    assert [each.id for each in store.external_addresses.held()] == [first.id]
    names.turn()
    release(store, first)
    second = give(store, 3, "shared")
    names.turn()
    assert state(store, second) == (NameState.REGISTERED, "")
    assert server.addresses(f"shared.{ZONE}") == [str(second.address)]


class Crash(BaseException):
    """The end of a process at the worst moment."""


class Crashing(DnsUpdates):
    """Updates after which the process ends, before it can note them."""

    def add(self, to: Association, deadline: float) -> None:
        super().add(to, deadline)
        raise Crash

    def remove(self, to: Association, deadline: float) -> None:
        super().remove(to, deadline)
        raise Crash


@pytest.mark.parametrize("gone_meanwhile", [False, True])
def test_after_a_crash_the_next_one_goes_on(
    store: Store, server: Bind, gone_meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"crash{gone_meanwhile:d}"
    given = give(store, 1, name)
    crashing = ExternalNames(store, Crashing(server.server, server.key), None, Closing())
    with pytest.raises(Crash):
        crashing.turn()
    assert server.addresses(f"{name}.{ZONE}") == [str(given.address)]
    assert state(store, given)[0] is NameState.PENDING
    if gone_meanwhile:
        release(store, given)
    after = ExternalNames(store, DnsUpdates(server.server, server.key), None, Closing())
    # The attempt may still be under way, as far as anybody knows.
    after.turn()
    assert state(store, given)[0] is (NameState.REMOVING if gone_meanwhile else NameState.PENDING)
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    after.turn()
    assert state(store, given)[0] is (NameState.REMOVED if gone_meanwhile else NameState.REGISTERED)
    assert server.addresses(f"{name}.{ZONE}") == ([] if gone_meanwhile else [str(given.address)])
    if not gone_meanwhile:
        release(store, given)
        with pytest.raises(Crash):
            crashing.turn()
        monkeypatch.setattr(time, "time", lambda: later + 60)
        after.turn()
        assert state(store, given)[0] is NameState.REMOVED


def test_an_address_is_not_given_again_while_a_name_leads_to_it(store: Store, server: Bind) -> None:
    one = (ip_network("198.51.100.0/32"),)
    given = give(store, 1, "kept", one, quarantine=0.0)
    names = ExternalNames(store, DnsUpdates(server.server, server.key), None, Closing())
    names.turn()
    release(store, given)
    with pytest.raises(ExternalAddressError, match="all 1 are given or rest"):
        give(store, 2, "next", one)
    names.turn()
    # Others keep the name for its time, however short the address would have rested.
    over = store.external_addresses.find(given.id)
    assert over is not None
    assert over.released is not None
    assert over.free is not None
    assert over.free >= over.released + 30
    store.external_addresses.expire(over.free)
    assert store.external_addresses.held() == []


def test_a_server_that_is_away_is_waited_for(store: Store) -> None:
    with bind() as server:
        names = ExternalNames(store, DnsUpdates(server.server, server.key), None, Closing())
        given, other = give(store, 1, "late"), give(store, 2, "later")

        def comes(one: Association, what: NameState) -> None:
            def come() -> bool:
                names.turn()
                return state(store, one)[0] is what

            wait(come)

        server.stop()
        names.turn()
        reason = f"the DNS server {server.server}: Connection refused"
        assert state(store, given) == state(store, other) == (NameState.PENDING, reason)
        assert actions(store, other) == ["register", "associate", "name waits"]
        server.start()
        comes(given, NameState.REGISTERED)
        comes(other, NameState.REGISTERED)
        server.stop()
        release(store, given)
        names.turn()
        assert state(store, given) == (NameState.REMOVING, reason)
        server.start()
        comes(given, NameState.REMOVED)
        assert server.addresses(f"late.{ZONE}") == []
        assert server.addresses(f"later.{ZONE}") == [str(other.address)]


def test_a_name_that_no_server_has_heard_of_keeps_no_address(store: Store, server: Bind, tmp_path: Path) -> None:
    """However long the server is away: the addresses of all jobs that end meanwhile would be lost to the next ones."""
    one = (ip_network("198.51.100.0/32"),)
    nobody = Listen("127.0.0.1", 9)
    silent = socket.create_server(("127.0.0.1", 0))
    for number, (dns, certain) in enumerate(
        (
            (DnsUpdates(nobody, server.key), True),
            (DnsUpdates(server.server, tmp_path / "none"), True),
            (DnsUpdates(server.server, server.key), True),
            # It has taken the update, for all that is known.
            (DnsUpdates(Listen("127.0.0.1", silent.getsockname()[1]), server.key, 0.2), False),
        ),
        1,
    ):
        # The third one is refused: the server has no such zone.
        zone = "elsewhere.org" if number == 3 else ZONE
        given = give(store, number, "", one, quarantine=0.0, name=FullName(f"unheard{number}.{zone}", zone, 1))
        names = ExternalNames(store, dns, None, Closing())
        names.turn()
        assert state(store, given)[0] is NameState.PENDING
        release(store, given)
        assert state(store, given)[0] is (NameState.REMOVED if certain else NameState.REMOVING)
        store.external_addresses.expire(time.time())
        assert (store.external_addresses.held() == []) is certain
    silent.close()


def test_a_server_that_is_away_is_asked_ever_more_seldom(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ExternalNames(store, DnsUpdates(Listen("127.0.0.1", 9), None), None, Closing())
    give(store, 1, "patient")
    clock, pauses = time.time(), list[int]()
    for _ in range(8):
        monkeypatch.setattr(time, "time", lambda now=clock: now)
        names.turn()
        assert store.external_addresses.names_due(clock, 9) == []
        step = next(each for each in range(1, 99) if store.external_addresses.names_due(clock + each, 9))
        pauses.append(step)
        clock += step
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "No such file or directory"),
        ("", "no key; accepted: a key as tsig-keygen writes it, of hmac-sha256"),
        ('key "lark" { algorithm hmac-md5; secret "c2VjcmV0"; };', "no key; accepted"),
        ('key "lark" { algorithm hmac-sha256; secret "c2VjcmV"; };', "the secret is not in base64"),
        ('key "other" { algorithm hmac-sha256; secret "c2VjcmV0c2VjcmV0"; };', "refuses the key or its signature"),
        ("another", "refuses the key or its signature"),
    ],
)
def test_a_key_that_is_none(server: Bind, store: Store, tmp_path: Path, key: str | None, reason: str) -> None:
    file = tmp_path / "key"
    if key is not None:
        file.write_text(tsig_key() if key == "another" else key)
    given = give(store, 1, "keyless")
    ExternalNames(store, DnsUpdates(server.server, file), None, Closing()).turn()
    found = state(store, given)
    assert found[0] is NameState.PENDING
    assert reason in found[1]
    # Others read reasons.
    assert "c2VjcmV" not in found[1]
    assert server.addresses(f"keyless.{ZONE}") == []
    with pytest.raises(NameServerError, match="LARK_DNS_SERVER and LARK_DNS_KEY are not set"):
        DnsUpdates(None, None).add(given, time.time() + 5)


def test_a_zone_that_the_server_does_not_have(server: Bind, store: Store) -> None:
    given = give(store, 1, "lost", name=FullName("lost.elsewhere.org", "elsewhere.org", 1))
    ExternalNames(store, DnsUpdates(server.server, server.key), None, Closing()).turn()
    assert "answers NOTAUTH" in state(store, given)[1]


def test_behind_a_shut_fence_and_after_its_deadline_nothing_is_sent(server: Bind, store: Store) -> None:
    fence = Fence()
    fence.shut("another is in charge")
    given = give(store, 1, "fenced")
    ExternalNames(store, DnsUpdates(server.server, server.key), fence, Closing()).turn()
    assert state(store, given) == (NameState.PENDING, "")
    with pytest.raises(NameServerError, match="taken too long"):
        DnsUpdates(server.server, server.key).add(given, time.time())
    assert server.addresses(f"fenced.{ZONE}") == []


@contextmanager
def controller(directory: Path, server: Bind, listen: Listen | None = None) -> Iterator[Lark]:
    lark = Lark(directory, POLICY, LARK_DNS_SERVER=str(listen or server.server), LARK_DNS_KEY=str(server.key))
    lark.start()
    try:
        yield lark
    finally:
        lark.stop()


def ads(number: int, owner: str, job: str = "") -> str:
    return (
        f'Owner="{owner}"\nGlobalJobId="submit.example#{number}.0#1"\nJobCurrentStartDate=1\n{job}\n------\n'
        f'Machine="worker1.example"\nName="slot{number}@worker1.example"\nLarkInnerAddressIPv4="10.64.0.{number}"\n'
        f'LarkInnerMacAddress="02:00:00:00:00:{number:02x}"\nLarkExternalInterface="p{number}"\n'
        'LarkDatapathId="00000000000000e1"\n'
    )


WISH = 'RequestExternalAddress=true\nExternalPorts="tcp/80"\nExternalName="{name}"'


def test_the_ad_asks_and_the_end_of_the_job_removes(tmp_path: Path, server: Bind) -> None:
    with controller(tmp_path, server) as lark:
        asked = lark.post(ads(1, "alice", WISH.format(name="Web")), 0)
        name = f"web.alice.{ZONE}"
        assert (asked.status, asked.body["external_name"], asked.body["external_open"]) == (201, name, ["tcp/80"])
        assert lark.get(f"/v1/jobs/{asked.body['id']}")["external_name"] == name
        wait(lambda: server.addresses(name) == asked.body["external_addresses"])
        # The same label is another name for another user; a second job of alice cannot have the first one's.
        assert lark.post(ads(2, "bob", WISH.format(name="web")), 0).body["external_name"] == f"web.bob.{ZONE}"
        second = lark.post(ads(3, "alice", WISH.format(name="web")), 0)
        assert (second.status, second.body["refused"]) == (409, "hold")
        assert "is another job's" in second.body["detail"]
        wrong = lark.post(ads(4, "alice", WISH.format(name="www.alice")), 0)
        assert (wrong.status, wrong.body["attribute"]) == (422, "ExternalName")
        carol = lark.post(ads(5, "cms_prod", WISH.format(name="web")), 0)
        assert (carol.status, "is no label" in carol.body["detail"]) == (409, True)
        (shown,) = lark.get(f"/v1/external-addresses?job={asked.body['id']}")["addresses"]
        wait(lambda: lark.get(f"/v1/external-addresses/{shown['id']}")["name_state"] == "registered")
        lark.end(asked.body)
        wait(lambda: server.addresses(name) == [])
        wait(lambda: lark.get(f"/v1/external-addresses/{shown['id']}")["name_state"] == "removed")
        # While the controller is gone a name stays with its job, and the next one removes it.
        lark.stop()
        lark.start()
        assert server.addresses(f"web.bob.{ZONE}")
        lark.end_all()
        wait(lambda: server.addresses(f"web.bob.{ZONE}") == [])


def test_asked_for_at_run_time_and_given_no_more_by_the_policy(tmp_path: Path, server: Bind) -> None:
    with controller(tmp_path, server) as lark:
        job = lark.post(ads(1, "alice"), 0).body

        def ask(**more: Any) -> Any:
            body = json.dumps({"job": job["id"], "open": ["tcp/80"], **more})
            return lark.request("POST", "/v1/external-addresses", body, "application/json")

        assert ask(name="a.b").body["errors"][0]["parameter"] == "name"
        made = ask(name="page")
        assert (made.status, made.body["name"], made.body["name_state"]) == (201, f"page.alice.{ZONE}", "pending")
        assert ask(name="PAGE").status == ask().status == 200
        assert "release that first" in ask(name="other").body["detail"]
        wait(lambda: server.addresses(f"page.alice.{ZONE}") == [made.body["address"]])
        lark.put_policy(POLICY.replace(', names: "{name}.{owner}.jobs.example.org"', ""))
        wait(lambda: server.addresses(f"page.alice.{ZONE}") == [])
        # The address itself stands.
        (stands,) = lark.get("/v1/external-addresses")["addresses"]
        assert (stands["id"], stands["released"]) == (made.body["id"], None)
        assert lark.get(f"/v1/jobs/{job['id']}")["external_name"] == ""
        trail = [each["action"] for each in lark.get(f"/v1/audit?subject={job['id']}")["entries"]]
        assert {"name added", "name over"} <= set(trail)
        # Asked for again: an answer with the reason, and not the address without the name.
        nameless = ask(name="page")
        assert (nameless.status, nameless.body["type"]) == (409, "urn:lark:problem:external-address")
        assert "the policy gives this job's address no name (line 8)" in nameless.body["detail"]
        assert (ask().status, ask().body["id"]) == (200, made.body["id"])
        lark.put_policy(POLICY)
        back = ask(name="page")
        assert (back.status, back.body["type"]) == (409, "urn:lark:problem:state")
        assert "the policy has taken the name page.alice" in back.body["detail"]
        refusals = lark.get(f"/v1/audit?subject={job['id']}")["entries"]
        assert [each["action"] for each in refusals].count("no external address") == 1
        lark.request("DELETE", f"/v1/external-addresses/{made.body['id']}")
        assert (ask(name="page").status, ask(name="page").body["name"]) == (201, f"page.alice.{ZONE}")
        lark.put_policy(POLICY.replace(', names: "{name}.{owner}.jobs.example.org"', ""))
        other = lark.post(ads(2, "alice"), 0).body
        body = json.dumps({"job": other["id"], "name": "page"})
        refused = lark.request("POST", "/v1/external-addresses", body, "application/json")
        assert "the policy gives this job's address no name (line 8)" in refused.body["detail"]


def test_what_the_policy_has_taken_is_not_answered_with_where_the_database_was_away_then(
    tmp_path: Path, server: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with controller(tmp_path, server) as lark:
        job = lark.post(ads(1, "alice"), 0).body
        body = json.dumps({"job": job["id"], "open": ["tcp/80"]})

        def ask() -> Any:
            return lark.request("POST", "/v1/external-addresses", body, "application/json")

        def away(*_: object) -> None:
            raise StoreError("the database is away")

        made = ask()
        assert made.status == 201
        with monkeypatch.context() as patched:
            patched.setattr(lark.service.controller.external._store, "release", away)
            lark.put_policy(POLICY.partition("external:")[0])
            assert ask().status == 503
        refused = ask()
        assert (refused.status, refused.body["type"]) == (409, "urn:lark:problem:external-address")
        assert refused.body["detail"] == "the policy has no external addresses"
        assert lark.get(f"/v1/external-addresses/{made.body['id']}")["why"] == "the policy has no external addresses"
        trail = [each["action"] for each in lark.get(f"/v1/audit?subject={job['id']}")["entries"]]
        assert {"dissociate", "no external address"} <= set(trail)


def test_the_server_is_away_the_address_stands(tmp_path: Path, server: Bind) -> None:
    with controller(tmp_path, server, Listen("127.0.0.1", 9)) as lark:
        job = lark.post(ads(1, "alice", WISH.format(name="web")), 0)
        assert job.status == 201
        wait(lambda: "Connection refused" in lark.get("/v1/external-addresses")["addresses"][0]["name_reason"])
        assert lark.get(f"/v1/jobs/{job.body['id']}")["external_addresses"] == ["198.51.100.64"]
        trail = [each["action"] for each in lark.get(f"/v1/audit?subject={job.body['id']}")["entries"]]
        assert "name waits" in trail
