"""External addresses in the database: none is two jobs', whoever asks in whatever order, and limits hold."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from lark_common.errors import ExternalAddressError, NotFoundError
from lark_common.runs import RunKey
from lark_controller.jobs.external import Association, listed
from lark_controller.jobs.external_names import FullName, NameState
from lark_controller.jobs.job import Job, JobState
from lark_controller.store import Store
from lark_controller.store.database import connect
from lark_controller.store.external_addresses import Claim
from lark_controller.store.schema import external_addresses as table
from tests.fixtures.databases import NOW, a_run

NETWORKS = (ip_network("198.51.100.0/31"),)
QUARANTINE = 60.0


def claim(job: Job, **changes: Any) -> Claim:
    return replace(Claim(job, "public", NETWORKS, listed("tcp/80"), 9, None, None, QUARANTINE), **changes)


def run(store: Store, number: int, **changes: Any) -> Job:
    return store.runs.register(a_run(number, **changes), "", "", "hook", NOW).job


def again_of(store: Store, job: Job, started: int, owner: str) -> Job:
    """A later run of the same job, as far as its GlobalJobId says."""
    key = RunKey(job.run.global_job_id, started, job.run.slot)
    return run(store, started, run=key, id=key.id, owner=owner)


def test_an_address_is_given_kept_released_and_rests(store: Store, store_url: str) -> None:
    job, other, external = run(store, 1), run(store, 2), store.external_addresses
    made = external.associate(claim(job, until=NOW + 900), NOW, "ops")
    assert (made.address, made.job, made.owner, made.group) == (
        ip_address("198.51.100.0"),
        job.id,
        job.owner,
        job.group,
    )
    assert (made.openings, made.until, made.released, made.live(NOW)) == (listed("tcp/80"), NOW + 900, None, True)
    assert external.associate(claim(job), NOW + 1, "other") == made
    assert (external.find(made.id), external.held(), external.had(job.id, 4)) == (made, [made], True)
    assert external.held(0, 1, job.id, job.owner) == [made]
    for chosen in ((made.number, 1, None, None), (0, 1, other.id, None), (0, 1, None, "nobody")):
        assert external.held(*chosen) == []
    store.close()
    again = Store.open(store_url).external_addresses
    over = again.release(made.id, NOW + 5, "released", "ops")
    assert over is not None
    assert (over.released, over.free, over.why) == (NOW + 5, NOW + 5 + QUARANTINE, "released")
    assert again.release(made.id, NOW + 6, "again", "ops") == over
    assert again.release("0" * 16, NOW, "", "ops") is None
    assert again.held() == [over]
    # Another's it is not before it has rested; its own job's it is again.
    assert again.associate(claim(other), NOW + 6, "ops").address == ip_address("198.51.100.1")
    assert again.associate(claim(job), NOW + 7, "ops").address == made.address
    assert again.find(made.id) == over
    again.database.close()


def test_a_job_that_asks_and_releases_in_a_loop_takes_one_address(store: Store) -> None:
    external, job, other = store.external_addresses, run(store, 1), run(store, 2)
    for number in range(20):
        made = external.associate(claim(job), NOW + number, "ops")
        assert made.address == ip_address("198.51.100.0")
        external.release(made.id, NOW + number, "released", "ops")
    # So does the same job when it runs again; another user's job is not it, whatever it says.
    store.runs.end(job.id, NOW + 20, "ended", "", "hook")
    next_run = again_of(store, job, 2000, job.owner)
    foreign = again_of(store, job, 3000, "mallory")
    assert external.associate(claim(foreign), NOW + 21, "ops").address == ip_address("198.51.100.1")
    again = external.associate(claim(next_run), NOW + 21, "ops")
    assert again.address == ip_address("198.51.100.0")
    # A pool that it is no more in, or a shorter rest, gives nobody anything sooner.
    external.release(again.id, NOW + 22, "released", "ops")
    moved = external.associate(claim(next_run, networks=(ip_network("203.0.113.0/31"),)), NOW + 22, "ops")
    assert moved.address == ip_address("203.0.113.0")
    external.release(moved.id, NOW + 22, "released", "ops")
    last = external.release(external.associate(claim(next_run, quarantine=0.0), NOW + 23, "ops").id, NOW + 23, "", "o")
    assert last is not None
    assert (last.address, last.free) == (again.address, NOW + 22 + QUARANTINE)
    with pytest.raises(ExternalAddressError, match="no address left"):
        external.associate(claim(other), NOW + 24, "ops")


def test_one_users_jobs_one_after_the_other_do_not_drain_a_pool(store: Store) -> None:
    external, pool = store.external_addresses, (ip_network("198.51.100.0/28"),)
    for number in range(1, 5):
        made = external.associate(claim(run(store, number, owner="a"), networks=pool, per_user=2), NOW, "ops")
        external.release(made.id, NOW + number, "released", "ops")
    fifth = run(store, 5, owner="a")
    left = "the jobs of a have 0 external addresses, and 4 of theirs still rest; at most 4 in all; the first has"
    with pytest.raises(ExternalAddressError, match=f"{left} rested in 41 s"):
        external.associate(claim(fifth, networks=pool, per_user=2), NOW + 20, "ops")
    external.associate(claim(run(store, 6, owner="b"), networks=pool, per_user=2), NOW + 20, "ops")
    assert external.associate(claim(fifth, networks=pool, per_user=2), NOW + 1 + QUARANTINE, "ops").live(NOW)


def test_addresses_that_wait_for_the_dns_have_no_time_at_which_they_have_rested(store: Store) -> None:
    external, pool = store.external_addresses, (ip_network("198.51.100.0/28"),)
    for number in (1, 2):
        name = FullName(f"web{number}.jobs.example.org", "jobs.example.org", 30)
        made = external.associate(
            claim(run(store, number, owner="a"), networks=pool, per_user=1, name=name), NOW, "ops"
        )
        external.name_added(made.number, NOW)
        external.release(made.id, NOW + number, "released", "ops")
    third = claim(run(store, 3, owner="a"), networks=pool, per_user=1)
    with pytest.raises(ExternalAddressError, match="at most 2 in all; the first has rested in 1 s"):
        external.associate(third, NOW + QUARANTINE, "ops")
    with pytest.raises(ExternalAddressError, match="at most 2 in all; their names are still to be removed"):
        external.associate(third, NOW + 9 * QUARANTINE, "ops")


def test_none_is_left_until_one_has_rested(store: Store) -> None:
    external = store.external_addresses
    first, second, third = (run(store, number) for number in (1, 2, 3))
    made = [external.associate(claim(job), NOW, "ops") for job in (first, second)]
    with pytest.raises(ExternalAddressError, match="pool public has no address left: all 2 are given or rest"):
        external.associate(claim(third), NOW, "ops")
    assert not external.had(third.id, 4)
    external.release(made[1].id, NOW, "released", "ops")
    with pytest.raises(ExternalAddressError):
        external.associate(claim(third), NOW + QUARANTINE - 1, "ops")
    assert external.associate(claim(third), NOW + QUARANTINE, "ops").address == made[1].address
    actions = [entry.action for entry in store.trail.page(second.id, None, 10).entries]
    assert actions == ["dissociate", "associate", "register"]


def test_a_job_that_has_ended_has_none(store: Store) -> None:
    external = store.external_addresses
    ended, refused, past = (run(store, number) for number in (1, 2, 3))
    more = (ip_network("198.51.100.0/28"),)
    made = [external.associate(claim(each, networks=more), NOW, "ops") for each in (ended, refused)]
    late = external.associate(claim(past, networks=more, until=NOW + 10), NOW, "ops")
    store.runs.end(ended.id, NOW + 1, "ended", "", "hook")
    store.runs.set_states([(refused.id, JobState.REFUSED, "no room")])
    assert external.expire(NOW + 10) == 2
    found = {each.id: each.why for each in external.held()}
    assert found == {made[0].id: "the job has ended", made[1].id: "the job has ended", late.id: "its time is over"}
    with pytest.raises(NotFoundError):
        external.associate(claim(ended), NOW, "ops")
    assert external.expire(NOW + 10 + QUARANTINE) == 0
    assert external.held() == []
    store.prune(NOW + 1000)
    assert external.find(late.id) is None


def test_users_and_groups_have_so_many(store: Store) -> None:
    more = (ip_network("198.51.100.0/28"),)
    jobs = [run(store, number, owner=owner, group="cms") for number, owner in enumerate("aab", 1)]
    store.external_addresses.associate(claim(jobs[0], networks=more, per_user=1, per_group=2), NOW, "ops")
    with pytest.raises(ExternalAddressError, match="the jobs of a have 1 external addresses; at most 1"):
        store.external_addresses.associate(claim(jobs[1], networks=more, per_user=1, per_group=2), NOW, "ops")
    with pytest.raises(ExternalAddressError, match="the jobs of cms have 1 external addresses; at most 1"):
        store.external_addresses.associate(claim(jobs[2], networks=more, per_user=1, per_group=1), NOW, "ops")
    store.external_addresses.associate(claim(jobs[2], networks=more, per_user=1, per_group=2), NOW, "ops")


def test_an_own_address_is_opened_beside_one_of_a_pool_counted_apart_and_does_not_rest(store: Store) -> None:
    external, own = store.external_addresses, ip_address("2001:db8::7")
    job, other = run(store, 1, owner="a"), run(store, 2, owner="a")

    def opening(whose: Job) -> Claim:
        return claim(whose, pool="own", networks=(), own=own, quarantine=0.0, per_user=1)

    first = external.associate(claim(job, per_user=1), NOW, "ops")
    opened = external.associate(opening(job), NOW, "ops")
    assert (opened.address, opened.pool, external.had(job.id, 6)) == (own, "own", True)
    assert external.associate(opening(job), NOW, "ops") == opened
    assert external.associate(claim(job, per_user=1), NOW, "ops") == first
    with pytest.raises(ExternalAddressError, match="at most 1"):
        external.associate(opening(other), NOW, "ops")
    with pytest.raises(ExternalAddressError, match=f"2001:db8::7 is open as the address of job {job.id}"):
        external.associate(replace(opening(other), per_user=2), NOW, "ops")
    external.release(opened.id, NOW + 1, "released", "ops")
    assert external.associate(opening(other), NOW + 1, "ops").address == own


def test_an_own_address_with_a_name_is_opened_again_once_no_name_leads_to_it(store: Store) -> None:
    external, own = store.external_addresses, ip_address("2001:db8::7")
    job, other = run(store, 1, owner="a"), run(store, 2, owner="b")
    name = FullName("web.jobs.example.org", "jobs.example.org", 30)

    def opening(whose: Job) -> Claim:
        return claim(whose, pool="own", networks=(), own=own, quarantine=0.0, name=name)

    made = external.associate(opening(job), NOW, "ops")
    external.name_added(made.number, NOW)
    external.release(made.id, NOW + 1, "released", "ops")
    kept = "the name web.jobs.example.org still leads to 2001:db8::7"
    for whose in (job, other):
        with pytest.raises(ExternalAddressError, match=kept):
            external.associate(opening(whose), NOW + 1, "ops")
    external.name_removed(made.number, NOW + 2)
    # Whoever keeps the name is led to the job that had it, and to no other.
    with pytest.raises(ExternalAddressError, match=kept):
        external.associate(opening(other), NOW + 3, "ops")
    assert external.associate(opening(job), NOW + 3, "ops").address == own


def test_many_at_once_get_each_address_once_and_no_more_than_they_may(store: Store) -> None:
    jobs = [run(store, number, owner="alice" if number % 2 else "bob") for number in range(1, 21)]
    pool = (ip_network("198.51.100.0/29"),)

    def ask(job: Job) -> Association | None:
        try:
            return store.external_addresses.associate(claim(job, networks=pool, per_user=3), NOW, "ops")
        except ExternalAddressError:
            return None

    with ThreadPoolExecutor(10) as executor:
        made = [each for each in executor.map(ask, jobs) if each is not None]
    assert len({each.address for each in made}) == len(made) == 6
    assert sorted(each.owner for each in made) == ["alice"] * 3 + ["bob"] * 3


def test_of_two_controllers_that_give_at_once_each_gives_others_and_a_name_to_one(store: Store, store_url: str) -> None:
    jobs = [run(store, number) for number in range(1, 17)]
    second = Store.open(store_url)
    pool = (ip_network("198.51.100.0/28"),)
    name = FullName("web.jobs.example.org", "jobs.example.org", 30)

    def ask(number: int) -> Association | None:
        through = (store, second)[number % 2].external_addresses
        wanted = name if number < 8 else None
        try:
            return through.associate(claim(jobs[number], networks=pool, per_user=16, name=wanted), NOW, "ops")
        except ExternalAddressError as error:
            refusals.add(str(error))
            return None

    refusals: set[str] = set()
    with ThreadPoolExecutor(8) as executor:
        made = [each for each in executor.map(ask, range(16)) if each is not None]
    assert len({each.address for each in made}) == len(made) == 9
    assert [each.name for each in made if each.name] == [name.text]
    assert refusals == {"the name web.jobs.example.org is another job's"}
    assert {each.id for each in second.external_addresses.held()} == {each.id for each in made}
    second.close()


def test_the_database_itself_gives_no_address_twice(store: Store, store_url: str) -> None:
    made = store.external_addresses.associate(claim(run(store, 1)), NOW, "ops")
    database = connect(store_url)
    with database.engine.begin() as connection:
        (row,) = connection.execute(select(table)).mappings().all()
    named = {"name": "x.org", "name_state": "pending"}
    with database.engine.begin() as connection:
        connection.execute(update(table).values(named))
    others = {"job": "another", "address": "198.51.100.1"}
    for changes in ({"job": "another"}, {"address": "198.51.100.1"}, {**others, **named}):
        values = {name: value for name, value in row.items() if name != "number"} | {"id": "f" * 16} | changes
        with pytest.raises(IntegrityError), database.engine.begin() as connection:
            connection.execute(insert(table).values(values))
    with pytest.raises(IntegrityError), database.engine.begin() as connection:
        connection.execute(update(table).where(table.c.id == made.id).values(held=False))
    database.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "release", "end", "expire", "wait"]), st.integers(1, 6), st.integers(0, 90)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_order_of_steps_gives_an_address_to_two_or_before_it_has_rested(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    path: Path = tmp_path_factory.mktemp("external") / "lark.db"
    store = Store.open(f"sqlite:///{path}")
    store.migrate()
    external, now = store.external_addresses, NOW
    jobs = {number: run(store, number) for number in range(1, 7)}
    given_before: dict[object, list[Association]] = {}
    holds: dict[int, Association] = {}
    for step, number, seconds in steps:
        job = jobs[number]
        if step == "wait":
            now += seconds
        elif step == "expire":
            external.expire(now)
        elif step == "end":
            store.runs.end(job.id, now, "ended", "", "hook")
        elif step == "release" and number in holds:
            external.release(holds[number].id, now, "released", "ops")
        elif step == "ask":
            try:
                made = external.associate(claim(job, per_user=1, until=now + 30 if seconds % 2 else None), now, "ops")
            except (ExternalAddressError, NotFoundError):
                continue
            holds[number] = made
            before = given_before.setdefault(made.address, [])
            for each in before:
                was = external.find(each.id)
                assert was is not None
                # Its own job has it again at once, as often as it asks; nobody else before it has rested.
                if was.job != made.job:
                    assert was.free is not None
                    assert was.free <= now
            before.append(made)
        held = external.held()
        assert len({each.address for each in held}) == len(held)
        for owner in {each.owner for each in held}:
            assert sum(each.owner == owner for each in held) <= 2
    store.close()


def test_what_an_address_costs_does_not_grow_with_those_that_are_given(store: Store, store_url: str) -> None:
    """Rows that are read for one of 2,000 addresses, not seconds: each request holds the database's lock meanwhile."""
    network = ip_network("10.0.0.0/16")
    job, external = run(store, 1), store.external_addresses
    made = external.associate(claim(job, networks=(network,)), NOW, "ops")
    others = {
        "family": 4, "pool": "public", "job": "f" * 16, "owner": "bob", "group_name": "", "openings": "tcp/80",
        "quarantine": 1e6, "created_at": NOW, "released_at": NOW, "free_at": NOW + 1e6, "held": True, "why": "",
        "actor": "ops",
    }  # fmt: skip
    engine = connect(store_url).engine
    with engine.begin() as connection:
        rows = [{**others, "id": f"{each:016x}", "address": str(network[each])} for each in range(1, 2_001)]
        connection.execute(insert(table), rows)
    engine.dispose()
    made_of: Counter[str] = Counter()

    def counted(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            made_of[frame.f_code.co_qualname] += 1

    other = run(store, 2)
    sys.setprofile(counted)
    try:
        given = external.associate(claim(other, networks=(network,)), NOW + 1, "ops")
    finally:
        sys.setprofile(None)
    assert given.address == network[2_001]
    assert made_of["ip_address"] < 50
    assert sum(made_of.values()) < 5_000
    # The list of one job is that job's.
    assert external.held(job=job.id) == [made]
    assert external.held(owner=other.owner) == [given]
    assert len(external.held()) == 2_002


def test_a_request_an_end_and_an_expiry_look_at_no_others_addresses(store: Store, store_url: str) -> None:
    external = store.external_addresses
    engine, asked = external.database.engine, list[tuple[str, Any]]()

    def noted(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if "external_addresses" in statement and not statement.startswith("INSERT"):
            asked.append((statement, parameters))

    jobs = [run(store, number, owner="alice", group="cms") for number in (1, 2)]
    named = FullName("web.jobs.example.org", "jobs.example.org", 30)
    event.listen(engine, "before_cursor_execute", noted)
    try:
        first = external.associate(claim(jobs[0], per_group=9, name=named), NOW, "ops")
        external.associate(claim(jobs[1], pool="own", networks=(), own=ip_address("2001:db8::7")), NOW, "ops")
        external.release(first.id, NOW, "released", "ops")
        external.associate(claim(jobs[0], per_group=9), NOW, "ops")
        external.had(jobs[0].id, 4)
        external.held(0, 10)
        external.held(0, 10, owner="alice")
        store.runs.end(jobs[0].id, NOW, "ended", "", "hook")
    finally:
        event.remove(engine, "before_cursor_execute", noted)
    assert len(asked) > 20
    with engine.connect() as connection:
        if not external.database.is_sqlite:
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        for statement, parameters in asked:
            prefix = "EXPLAIN QUERY PLAN" if external.database.is_sqlite else "EXPLAIN"
            plan = str(connection.exec_driver_sql(f"{prefix} {statement}", parameters).all())
            # By an index of what is listed all of it is read: that is what a list is.
            plan = plan.replace("SCAN external_addresses USING INDEX external_addresses_listed", "")
            assert "SCAN external_addresses" not in plan, (statement, plan)
            assert "Seq Scan on external_addresses" not in plan, (statement, plan)


def test_a_job_of_ones_own_that_a_switch_has_refused_counts_no_more(store: Store) -> None:
    external, (first, second) = store.external_addresses, [run(store, each, owner="a") for each in (1, 2)]
    made = external.associate(claim(first, per_user=1), NOW, "ops")
    store.runs.set_states([(first.id, JobState.REFUSED, "no room")])
    assert external.associate(claim(second, per_user=1), NOW + 1, "ops").live(NOW + 1)
    over = external.find(made.id)
    assert over is not None
    assert over.why == "the job has ended"


def test_a_name_that_is_withheld_is_its_jobs_and_comes_back(store: Store) -> None:
    external, name = store.external_addresses, FullName("web.jobs.example.org", "jobs.example.org", 30)
    jobs = [run(store, number) for number in (1, 2)]
    made = external.associate(claim(jobs[0], name=name), NOW, "ops")

    def now() -> tuple[str, str, list[int]]:
        found = external.find(made.id)
        assert found is not None
        return found.name_state, found.name_reason, [each.number for each in external.names_due(NOW + 500, 9)]

    # What was never sent is out at once; what is there, once it is taken out.
    external.withhold_name(made.number, NOW, "no room")
    assert now() == ("withheld", "the address is closed", [])
    assert [each.id for each in external.names_withheld()] == [made.id]
    with pytest.raises(ExternalAddressError, match="is another job's"):
        external.associate(claim(jobs[1], name=name), NOW, "ops")
    external.offer_name(made.number, NOW)
    assert now() == ("pending", "", [made.number])
    external.name_added(made.number, NOW)
    external.withhold_name(made.number, NOW, "no room")
    external.withhold_name(made.number, NOW, "no room")
    assert now() == ("withheld", "", [made.number])
    external.name_removed(made.number, NOW)
    assert now() == ("withheld", "the address is closed", [])
    external.offer_name(made.number, NOW)
    external.name_added(made.number, NOW)
    # It is open again while it is being taken out: whatever comes of that, it is added after that.
    external.withhold_name(made.number, NOW, "no room")
    assert external.begin_name(made.number, NameState.WITHHELD, NOW, NOW + 15) == 1
    external.offer_name(made.number, NOW)
    assert [each.number for each in external.names_due(NOW + 1, 9)] == []
    external.name_removed(made.number, NOW + 1)
    assert [each.number for each in external.names_due(NOW + 1, 9)] == [made.number]
    # The end of the address while it is withheld: removed where it may be there.
    external.withhold_name(made.number, NOW, "no room")
    external.release(made.id, NOW + 2, "released", "ops")
    assert now()[::2] == ("removing", [made.number])
    actions = [entry.action for entry in reversed(store.trail.page(jobs[0].id, None, 50).entries)]
    assert actions == [
        "register", "associate", "name withheld", "name added", "name withheld", "name removed", "name added",
        "name withheld", "name withheld", "dissociate",
    ]  # fmt: skip


def test_an_attempt_that_fails_after_its_name_was_withheld_and_offered_leaves_the_one_before_counted(
    store: Store,
) -> None:
    external, name = store.external_addresses, FullName("web.jobs.example.org", "jobs.example.org", 30)
    made = external.associate(claim(run(store, 1), name=name), NOW, "ops")

    def attempt(number: int, at: float) -> None:
        assert external.begin_name(made.number, NameState.PENDING, at, at + 15) == number

    # One that has left the zone as it was counts for none; of the next one nothing is certain.
    attempt(1, NOW)
    # Meanwhile another controller begins none.
    attempt(0, NOW + 14)
    external.name_failed(made.number, NameState.PENDING, "away", NOW, NOW + 2, 1)
    attempt(1, NOW + 2)
    external.name_failed(made.number, NameState.PENDING, "no answer", NOW + 3, NOW + 4)
    attempt(2, NOW + 4)
    external.withhold_name(made.number, NOW + 5, "no room")
    external.offer_name(made.number, NOW + 5)
    external.name_failed(made.number, NameState.PENDING, "away", NOW + 6, NOW + 8, 2)
    # The name may lead to the address, so that is nobody else's before the name is out of the zone.
    external.release(made.id, NOW + 7, "released", "ops")
    over = external.find(made.id)
    assert over is not None
    assert over.name_state is NameState.REMOVING


def test_the_state_of_a_pool_has_what_the_associations_have(store: Store) -> None:
    external, network = store.external_addresses, ip_network("198.51.100.0/28")
    jobs = [run(store, number) for number in range(1, 5)]
    made = [
        external.associate(claim(job, networks=(network,), until=until), NOW, "ops")
        for job, until in zip(jobs, (None, NOW + 50, None, None), strict=True)
    ]
    external.release(made[2].id, NOW + 1, "released", "ops")
    external.release(made[3].id, NOW + 30, "released", "ops")
    for now in (NOW + 40, NOW + 55, NOW + 1 + QUARANTINE, NOW + 1000):
        live = [each for each in external.held() if each.live(now)]
        rest = [each for each in external.held() if not each.live(now) and (each.free is None or each.free > now)]
        assert sorted(external.places(now)) == sorted(
            [(each.address, True) for each in live] + [(each.address, False) for each in rest]
        )
