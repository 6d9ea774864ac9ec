"""Posts and ends whose commit the database does not answer: memory follows what it has, once it answers again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as sql_event
from sqlalchemy.exc import OperationalError

from lark_common.classads.ads import parse_post
from lark_common.errors import AddressError, NotFoundError, RuleLimitError, StoreError, UnansweredError
from lark_controller.api.reservations import Wish
from lark_controller.jobs.job import Directory, Job
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from lark_controller.services.feed import Feed
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.store import Store
from tests.fixtures.controllers import POLICY, running, until
from tests.fixtures.databases import sqlite_with_tables
from tests.services.test_reservations import POLICY as RESERVING
from tests.services.test_reservations import flows, start


@pytest.fixture
def registration(tmp_path: Path) -> Iterator[Registration]:
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    feed = Feed(Directory(), lambda _job: None, lambda _number: None)
    made = Registration(store, 900, feed, Reservations(store, feed))
    policy = load(POLICY)
    made.use(policy, needed_attributes(policy))
    yield made
    store.close()


def post(registration: Registration, number: int, slot: int = 1, address: str = "", port: str = "") -> Job:
    port = port or f"p{slot}"
    given = f'LarkInnerAddressIPv4 = "{address}"\n' if address else 'LarkAddressType = "controller"\n'
    text = (
        f'Owner = "alice"\nGlobalJobId = "s#{number}.0#1"\nJobCurrentStartDate = {number}\n------\nMachine = "w"\n'
        f'Name = "slot{slot}@w"\nLarkNetworkType = "ovs_bridge"\nLarkExternalInterface = "{port}"\n{given}'
    )
    return registration.register(*parse_post(text.encode(), "text/plain"), "hook").job


def unanswered(
    registration: Registration, patch: pytest.MonkeyPatch, ask: Callable[[], object], *, done: bool = True
) -> None:
    """Ask, and have the commit's answer lost."""
    runs = registration._store.runs
    carry_out = runs.carry_out

    def lost(requests: Any) -> Any:
        if done:
            carry_out(requests)
        raise UnansweredError("The change may or may not have been written")

    with patch.context() as patched:
        patched.setattr(runs, "carry_out", lost)
        with pytest.raises(UnansweredError):
            ask()


def both(registration: Registration) -> set[str]:
    """The live jobs' ids, in memory and store the same."""
    found = {each.id for each in registration.live()}
    assert found == {each.id for each in registration._store.runs.live()}
    return found


def test_a_job_whose_end_had_no_answer_does_not_live_on_in_memory(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = post(registration, 1)
    unanswered(registration, monkeypatch, lambda: registration.end(job.id, "hook", "over"))
    registration.look_again()
    assert both(registration) == set()
    # Its address is another's to have.
    assert post(registration, 2, slot=2, address=str(job.ipv4)).addresses == job.addresses


def test_a_post_without_an_answer_is_there_and_what_it_has_ended_is_not(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = post(registration, 1)
    unanswered(registration, monkeypatch, lambda: post(registration, 2))
    registration.look_again()
    (left,) = both(registration)
    assert left != first.id
    (held,) = registration.live()
    # Nobody else gets its address or its port.
    assert post(registration, 3, slot=2).addresses != held.addresses
    with pytest.raises(AddressError):
        post(registration, 4, slot=3, address=str(held.ipv4))
    assert registration.end(left, "hook", "over").id == left


@pytest.mark.parametrize("done", [True, False])
def test_a_port_that_a_post_without_an_answer_may_have_is_no_other_runs(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Two live jobs at one port are the same to a switch, and nothing in the database forbids them."""
    unanswered(registration, monkeypatch, lambda: post(registration, 1), done=done)
    if done:
        with pytest.raises(AddressError, match="port p1"):
            post(registration, 2, slot=2, port="p1")
    else:
        assert post(registration, 2, slot=2, port="p1").live
    assert len([each for each in registration.live() if each.port == "p1"]) == 1
    both(registration)


def test_nothing_is_posted_that_a_run_in_doubt_may_have(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswered(registration, monkeypatch, lambda: post(registration, 1))

    def away() -> None:
        raise StoreError("away")

    with monkeypatch.context() as patched:
        patched.setattr(registration._store, "settle", away)
        with pytest.raises(StoreError, match="away"):
            post(registration, 2, slot=2, port="p1")
        with pytest.raises(StoreError, match="away"):
            post(registration, 2)
        # Another slot with a port of its own is in no doubt, nor is the run itself.
        assert post(registration, 3, slot=3).live
        assert post(registration, 1).live


def test_a_post_that_is_asked_again_follows_the_end_of_the_run_before(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out of memory after it, the one before would take the flows of their port along, and their address."""
    order = list[str]()
    first = post(registration, 1, address="10.64.0.9")
    feed = registration._feed
    monkeypatch.setattr(feed, "_put", lambda job: order.append(f"put {job.id}"))
    monkeypatch.setattr(feed, "_gone", lambda number: order.append(f"gone {number}"))
    unanswered(registration, monkeypatch, lambda: post(registration, 2, address="10.64.0.9"))
    later = post(registration, 2, address="10.64.0.9")
    assert both(registration) == {later.id}
    assert order[0] == f"gone {first.number}"
    assert set(order[1:]) == {f"put {later.id}"}
    assert later.ipv4 is not None
    assert registration._held.blocks.holds(later.ipv4)


@pytest.mark.parametrize("slot", [1, 2])
def test_a_run_after_one_whose_end_had_no_answer_has_its_port(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, slot: int
) -> None:
    first = post(registration, 1)
    unanswered(registration, monkeypatch, lambda: registration.end(first.id, "hook", "over"))
    later = post(registration, 2, slot=slot, port="p1")
    assert both(registration) == {later.id}
    assert registration._held.at("w", "p1") == later.id


@pytest.mark.parametrize("again", range(4))
def test_an_address_that_a_post_took_from_the_run_that_it_ended_is_held(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Whichever of the two runs, whose ids have no order, is looked at first."""
    post(registration, 2 * again + 1, address="10.64.0.9")
    unanswered(registration, monkeypatch, lambda: post(registration, 2 * again + 2, address="10.64.0.9"))
    registration.look_again()
    (held,) = registration.live()
    assert held.ipv4 is not None
    assert registration._held.blocks.holds(held.ipv4)


def test_a_job_whose_lease_was_ended_without_an_answer_does_not_live_on_in_memory(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not among those whose lease is over any more."""
    post(registration, 1)
    end = registration._store.runs.end

    def lost(*arguments: Any) -> None:
        end(*arguments)
        raise UnansweredError("The change may or may not have been written")

    with monkeypatch.context() as patched:
        patched.setattr(registration._store.runs, "end", lost)
        with pytest.raises(UnansweredError):
            registration.expire(time.time() + 1000)
    registration.look_again()
    assert both(registration) == set()


@pytest.mark.parametrize("what", ["quarantine", "lift"])
def test_a_quarantine_that_had_no_answer_is_what_the_store_has(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """An operator who lifts it again is told that there is none, while nothing of the job would pass."""
    job = post(registration, 1)
    if what == "lift":
        registration.quarantine(job.id, "contradicted", "lark")
    carry_out = getattr(registration._store.runs, what)

    def ask() -> Job | None:
        if what == "lift":
            return registration.lift(job.id, "looked at", "operator", vouched=True)
        return registration.quarantine(job.id, "contradicted", "lark")

    def lost(*arguments: Any, **more: Any) -> None:
        carry_out(*arguments, **more)
        raise UnansweredError("The change may or may not have been written")

    with monkeypatch.context() as patched:
        patched.setattr(registration._store.runs, what, lost)
        with pytest.raises(UnansweredError):
            ask()
    registration.look_again()
    (held,) = registration.live()
    assert (held.quarantine, held.vouched) == (("", True) if what == "lift" else ("contradicted", False))


def test_a_post_whose_lease_of_an_address_is_over_is_known_where_giving_it_up_failed(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The post itself is stored then."""

    def dhcp(more: str) -> Job:
        text = (
            'Owner = "alice"\nGlobalJobId = "s#1.0#1"\nJobCurrentStartDate = 1\n------\nMachine = "w"\n'
            'Name = "slot1@w"\nLarkNetworkType = "ovs_bridge"\nLarkExternalInterface = "p1"\n'
            f'LarkAddressType = "dhcp"\n{more}\n'
        )
        return registration.register(*parse_post(text.encode(), "text/plain"), "hook").job

    def away(*_: Any) -> None:
        raise StoreError("the database is away")

    dhcp('LarkInnerAddressIPv4 = "10.64.0.9"')
    registration._feed.remove(registration.live()[0].id)
    with monkeypatch.context() as patched:
        patched.setattr(registration._store.runs, "set_address", away)
        with pytest.raises(StoreError):
            dhcp("LarkLeaseOver = true")
    registration.look_again()
    assert len(both(registration)) == 1


def test_what_was_not_written_changes_nothing(registration: Registration, monkeypatch: pytest.MonkeyPatch) -> None:
    job = post(registration, 1)
    unanswered(registration, monkeypatch, lambda: registration.end(job.id, "hook", "over"), done=False)
    unanswered(registration, monkeypatch, lambda: post(registration, 2, slot=2), done=False)
    registration.look_again()
    assert both(registration) == {job.id}
    assert registration.live() == [job]


def test_it_is_looked_for_until_the_database_answers(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = post(registration, 1)
    unanswered(registration, monkeypatch, lambda: registration.end(job.id, "hook", "over"))

    def away(*_: object) -> None:
        raise StoreError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(registration._store.runs, "find", away)
        with pytest.raises(StoreError):
            registration.look_again()
    registration.look_again()
    assert both(registration) == set()


def test_a_later_doubt_is_not_settled_by_an_earlier_look(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write that it is about may still be carried out by the server."""
    job = post(registration, 1)
    unanswered(registration, monkeypatch, lambda: registration.end(job.id, "hook", "over"), done=False)
    with monkeypatch.context() as patched:
        patched.setattr(
            registration._store,
            "settle",
            lambda: unanswered(registration, monkeypatch, lambda: registration.end(job.id, "hook", "over"), done=False),
        )
        registration.look_again()
    # Carried out after the first look had its writes over.
    registration._store.runs.end(job.id, 1.0, "over", "", "hook")
    registration.look_again()
    assert both(registration) == set()


@pytest.mark.parametrize(("done", "rate"), [(True, 60.0), (False, 20.0)])
def test_a_second_post_of_a_live_run_that_had_no_answer_has_the_rate_that_the_store_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool, rate: float
) -> None:
    with running(tmp_path, RESERVING) as controller:
        job = start(controller, 1, rate=20.0)
        unanswered(controller._registration, monkeypatch, lambda: start(controller, 1, rate=60.0), done=done)
        controller._registration.look_again()
        (held,) = controller._registration.live()
        (booked,) = controller.reservations.page(job.id, None, 10).reservations
        assert (held.id, held.bandwidth, booked.rate, held.addresses) == (job.id, rate, rate, job.addresses)
        # Asked again it is what it is by then, with what is the job's once.
        assert start(controller, 1, rate=60.0).id == job.id
        assert [each.rate for each in controller.reservations.page(job.id, None, 10).reservations] == [60.0]


@pytest.mark.parametrize("again", [True, False])
def test_a_reservation_whose_release_had_no_answer_leaves_the_jobs_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Its room is another's already, while the switch would keep it for the job."""
    with running(tmp_path, RESERVING) as controller:
        job = start(controller, 1)
        held = controller.reservations.reserve(Wish(source=job.id, destination="wan", rate=30.0), "hook", of_job=True)
        assert flows(controller, job)
        store = controller.reservations._store.reservations
        release = store.release

        def lost(*arguments: Any, **more: Any) -> None:
            release(*arguments, **more)
            raise UnansweredError("The change may or may not have been written")

        with monkeypatch.context() as patched:
            patched.setattr(store, "release", lost)
            with pytest.raises(UnansweredError):
                controller.reservations.release(held.id, "hook", of_job=True)
        if again:
            with pytest.raises(NotFoundError):
                controller.reservations.release(held.id, "hook", of_job=True)
        else:
            controller.reservations.expire(time.time())
        assert not flows(controller, job)


def test_a_release_that_was_not_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, RESERVING) as controller:
        job = start(controller, 1)
        held = controller.reservations.reserve(Wish(source=job.id, destination="wan", rate=30.0), "hook", of_job=True)

        def lost(*_: Any, **__: Any) -> None:
            raise UnansweredError("The change may or may not have been written")

        with monkeypatch.context() as patched:
            patched.setattr(controller.reservations._store.reservations, "release", lost)
            with pytest.raises(UnansweredError):
                controller.reservations.release(held.id, "hook", of_job=True)
        controller.reservations.expire(time.time())
        assert flows(controller, job)
        assert controller.reservations.release(held.id, "hook", of_job=True).id == held.id
        assert not flows(controller, job)


def test_the_controller_looks_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, RESERVING, lease=8.0) as controller:
        registration = controller._registration
        job = start(controller, 1)
        unanswered(registration, monkeypatch, lambda: registration.end(job.id, "hook", "over"))
        until(lambda: not registration.live())


def test_an_answer_to_a_commit_that_does_not_come_is_said(tmp_path: Path) -> None:
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))

    def gone(_connection: object) -> None:
        raise OperationalError("", {}, Exception("server closed the connection unexpectedly"))

    sql_event.listen(store._database.engine, "commit", gone)
    with pytest.raises(UnansweredError, match="may or may not have been written"):
        store.trail.record(1.0, "a", "did", "something")
    store.close()


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_a_policy_that_had_no_answer_is_in_force_where_the_store_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool, again: bool
) -> None:
    """Else the next takeover brings it into force, over one that was acknowledged since then."""
    other = RESERVING + "# other\n"
    with running(tmp_path, RESERVING) as controller:
        trail = controller._store.trail
        put_policy = trail.put_policy

        def lost(*arguments: Any) -> None:
            if done:
                put_policy(*arguments)
            raise UnansweredError("The change may or may not have been written")

        with monkeypatch.context() as patched:
            patched.setattr(trail, "put_policy", lost)
            with pytest.raises(UnansweredError):
                controller.policy.put(other, "ops")
        if again:
            # The former one once more, which is to win now.
            assert controller.policy.put(RESERVING, "ops").text == RESERVING
        else:
            controller.policy.look_again()
        newest = trail.latest_policy()
        assert newest is not None
        assert newest.text == (other if done and not again else RESERVING)
        assert controller.policy.version == newest
        assert controller.policy.policy.digest == newest.digest


def test_a_policy_that_had_no_answer_and_has_no_room_now_keeps_no_other_from_being_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the one in force from being put over it, which a takeover would bring into force."""
    other = RESERVING + "# other\n"
    with running(tmp_path, RESERVING) as controller:
        trail = controller._store.trail
        put_policy, read = trail.put_policy, controller.policy._checked
        tried: list[str] = []

        def lost(*arguments: Any) -> None:
            put_policy(*arguments)
            raise UnansweredError("The change may or may not have been written")

        def without_room(policy: Policy) -> object:
            tried.append(policy.text)
            if policy.text == other:
                raise RuleLimitError("a switch has no room for it")
            return read(policy)

        with monkeypatch.context() as patched:
            patched.setattr(trail, "put_policy", lost)
            with pytest.raises(UnansweredError):
                controller.policy.put(other, "ops")
        monkeypatch.setattr(controller.policy, "_checked", without_room)
        for _ in range(3):
            controller.policy.look_again()
        assert tried == [other]
        put = controller.policy.put(RESERVING, "ops")
        assert trail.latest_policy() == put == controller.policy.version
        assert put.text == RESERVING
