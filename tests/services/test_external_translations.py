"""Gateways are told of the translations that have changed since, whatever came between, and at once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_switch.switch import FakeNetwork
from lark_common.runs import Address
from lark_controller.api.external import ExternalState, ExternalWish, GatewayWord, Translation
from lark_controller.controller import Controller
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Job
from lark_controller.services import external_translations
from lark_controller.services.external_translations import Confirmed, Pools, Translations
from tests.fixtures.controllers import an_edge, connect, network, post, running, until
from tests.fixtures.databases import a_run
from tests.services.test_external_networks import OPEN, SECTION

__all__ = ["network"]

POOL = IPv4Address("198.51.100.64")


def job(number: int, external: int | None, opened: str = "tcp/80", **changes: object) -> Job:
    has = () if external is None else (External(POOL + external, listed(opened)),)
    return replace(a_run(number), external=has, **changes)  # type: ignore[arg-type]


class Reader:
    """A gateway: what it has by what it was told."""

    def __init__(self, log: Translations) -> None:
        self.log, self.revision, self.has, self.told = log, "", dict[Address, Translation](), 0

    def read(self) -> None:
        more = True
        while more:
            found = self.log.since(self.revision, 0.0)
            self.revision, more = found.revision, found.more
            self.has = {} if found.whole else self.has
            for address in found.gone:
                self.has.pop(address, None)
            self.has |= {each.external: each for each in found.translations}
            self.told += len(found.gone) + len(found.translations)


STEPS = st.lists(
    st.tuples(st.integers(1, 4), st.none() | st.integers(0, 3), st.sampled_from(["tcp/80", "any"]), st.booleans()),
    max_size=60,
)


@given(STEPS, st.sets(st.integers(0, 60)))
def test_whoever_asks_at_whatever_time_has_what_there_is(
    steps: list[tuple[int, int | None, str, bool]], asks: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(external_translations, "AT_A_TIME", 2)
        patched.setattr(external_translations, "MOST_GONE", 2)
        log = Translations()
        readers, live = [Reader(log), Reader(log)], dict[int, Job]()
        for place, (number, external, opened, quarantined) in enumerate(steps):
            if external is not None and any(external_of(each) == external for n, each in live.items() if n != number):
                continue
            after = job(number, external, opened, quarantine="why" if quarantined else "") if external != 0 else None
            log.note(live.pop(number, None), after)
            if after is not None:
                live[number] = after
            if place in asks:
                readers[0].read()
        for reader in readers:
            reader.read()
            assert reader.has == {
                each.external[0].address: Translation(each.external[0].address, each.ipv4, each.external[0].openings)
                for each in live.values()
                if each.external and each.ipv4 is not None and not each.quarantine
            }


def external_of(one: Job) -> int | None:
    return int(one.external[0].address) - int(POOL) if one.external else None


def test_an_answer_is_as_long_as_the_changes_are_many() -> None:
    log = Translations()
    for number in range(1, 3_001):
        log.note(None, replace(a_run(number), external=(External(ip_address(0xC6120000 + number), listed("any")),)))
    reader = Reader(log)
    reader.read()
    assert (reader.told, len(reader.has)) == (3_000, 3_000)
    log.note(None, job(4_000, 1))
    reader.read()
    assert reader.told == 3_001
    # Another term of the program, and a word that is no revision: everything.
    for word in ("0123456789abcdef.3001", "x", f"{reader.revision}0", "9" * 99):
        assert log.since(word, 0.0).whole


def test_a_change_wakes_those_who_wait_and_so_does_the_end() -> None:
    log = Translations()
    log.note(None, job(1, 1))
    revision = log.since("", 0.0).revision
    began = time.monotonic()
    assert log.since(revision, 0.05).translations == ()
    found = log.since("", 0.0)
    for act in (lambda: log.note(job(1, 1), None), log.close):
        threading.Timer(0.05, act).start()
        found = log.since(revision, 30.0)
        revision = found.revision
    assert time.monotonic() - began < 20
    assert found.gone == ()


def test_it_follows_the_job_its_lease_its_quarantine_and_its_end(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        reader = Reader(controller.external._translations)
        more = 'AddressType = "dhcp"'
        one = post(controller, 1, address="10.64.0.1", more=more).job
        made = controller.external.associate(ExternalWish(one.id, listed("tcp/80")), "ops").association

        def leads_to() -> str | None:
            reader.read()
            found = reader.has.get(made.address)
            return None if found is None else str(found.inside)

        assert leads_to() == "10.64.0.1"
        post(controller, 1, address="10.64.0.9", more=more)
        assert leads_to() == "10.64.0.9"
        controller._registration.quarantine(one.id, "the pool contradicts it", "pool")
        assert leads_to() is None
        # It is closed and not taken: whoever looks after what the policy gives leaves it.
        controller.external.expire(time.time())
        assert controller.external.find(made.id).released is None
        controller.jobs.lift(one.id, "ops")
        assert leads_to() == "10.64.0.9"
        told = reader.told
    # The next controller has it from the store, and a gateway is told it as a whole.
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        reader.log = controller.external._translations
        assert (leads_to(), reader.told) == ("10.64.0.9", told + 1)
        controller.jobs.end(one.id, "test")
        assert leads_to() is None


HERE: Pools = (IPv4Network("198.51.100.64/28"),)


def test_a_gateway_confirms_what_its_kernel_has_in_its_own_pools() -> None:
    served, confirmed = list[Pools](), list[Confirmed]()
    log = Translations(served.append, confirmed.append)
    log.note(None, job(1, 1))
    log.note(None, job(2, 2))
    log.confirm(GatewayWord("g", HERE, "", 1.0))
    assert (served, confirmed) == ([HERE], [])
    known = log.since("", 0.0).revision
    log.note(None, job(3, 3))
    log.confirm(GatewayWord("g", HERE, known, 1.0))
    assert [{job_id for job_id, _ in each} for each in confirmed] == [{a_run(1).id, a_run(2).id}]
    # Said again it is no news; a revision of another term, or one that has not come, confirms nothing.
    for word in (known, "0123456789abcdef.9", f"{known}00"):
        log.confirm(GatewayWord("g", HERE, word, 1.0))
    assert len(confirmed) == 1
    now = log.since(known, 0.0).revision
    log.confirm(GatewayWord("h", (IPv4Network("203.0.113.0/24"),), now, 1.0))
    log.confirm(GatewayWord("g", HERE, now, 1.0, frozenset({POOL + 1})))
    assert [{job_id for job_id, _ in each} for each in confirmed[1:]] == [{a_run(2).id, a_run(3).id}]
    assert len(served) == 2
    assert {*served[1]} == {*HERE, IPv4Network("203.0.113.0/24")}


def test_a_gateway_that_says_nothing_more_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    served = list[Pools]()
    log = Translations(served.append)
    monkeypatch.setattr(external_translations, "LATE", 0.0)
    log.confirm(GatewayWord("g", HERE, "", 600.0))
    log.forget_away()
    assert served == [HERE]
    log.confirm(GatewayWord("g", HERE, "", 0.0))
    log.forget_away()
    assert served == [HERE, ()]


def test_a_job_waits_for_a_gateway_where_no_core_translates(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = f"version: 1\nnetworks: {{jobs: [10.64.0.0/16]}}\n{SECTION.replace('REFUSED', 'hold')}"
    asks = "RequestExternalAddress = true"

    def word(revision: str, seconds: float = 600.0) -> None:
        gateway = GatewayWord("gateway1", HERE, revision, seconds)
        controller.external.translated(gateway)

    with running(tmp_path, policy) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        one = post(controller, 1, attributes=asks).job
        none = "no gateway that serves 198.51.100.64 is there"
        until(lambda: controller.jobs.confirm(one.id, 0).job.reason == none)
        told = controller.jobs.confirm(one.id, 0)
        assert (told.job.state, [each.reason for each in told.waiting]) == ("pending", [none])
        (given,) = controller.external.page(one.id).associations
        assert controller.external.standing(given) == (ExternalState.PENDING, none)
        until(lambda: ("external address waits", none) in trail(controller, one.id))
        # A gateway has come, and has not got so far; then it has.
        word("")
        until(lambda: controller.jobs.confirm(one.id, 0).job.state == "registering")
        assert controller.external.standing(given).reason == "no gateway has confirmed the external address yet"
        word(controller.external.translations("", 0.0).revision)
        assert controller.jobs.confirm(one.id, 20).job.state == "enforced"
        assert controller.external.standing(given).state is ExternalState.OPEN
        # A job without an external address waits for none, and one that comes waits as long as the gateway takes.
        assert controller.jobs.confirm(post(controller, 2).job.id, 20).job.state == "enforced"
        two = post(controller, 3, attributes=asks).job
        threading.Timer(0.2, lambda: word(controller.external.translations("", 0.0).revision)).start()
        assert controller.jobs.confirm(two.id, 20).job.state == "enforced"
        # A gateway that goes keeps what it has.
        monkeypatch.setattr(external_translations, "LATE", 0.0)
        word(controller.external.translations("", 0.0).revision, 0.0)
        controller.external.expire(time.time())
        assert controller.jobs.confirm(two.id, 0).job.state == "enforced"
        late = post(controller, 2, started=2, attributes=asks).job
        until(lambda: controller.jobs.confirm(late.id, 0).job.reason == "no gateway that serves 198.51.100.66 is there")
        # What does not need it any more waits no more.
        (third,) = controller.external.page(late.id).associations
        controller.external.release(third.id, "ops")
        assert controller.jobs.confirm(late.id, 20).job.state == "enforced"
    # The next controller has the store's word until gateways have had time to confirm.
    with running(tmp_path, policy) as controller:
        assert controller.jobs.found(one.id).state == "enforced"


def trail(controller: Controller, job_id: str) -> list[tuple[str, str]]:
    return [(each.action, each.detail) for each in controller.audit.page(job_id, None, 9).entries]
