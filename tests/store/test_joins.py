"""Join tokens and the tokens of workers that have joined, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Barrier, Thread

import pytest
from alembic import command

from lark_common.errors import BusyError, FencedError, NotFoundError, StateError
from lark_controller.api.instances import Identity
from lark_controller.api.joins import MOST_TOKENS, ForeignJoin, JoinChanges, Joined, JoinedWorker, JoinToken
from lark_controller.store import Store, migrate
from lark_controller.store.joins import JOIN_SUBJECT
from tests.fixtures.databases import NOW

HOST, OTHER = "worker1.example", "Worker2.example"
A, B, C = "a" * 64, "b" * 64, "c" * 64
END = NOW + 3600


def a_token(name: str = "t1", *hosts: str, expires: float = END) -> JoinToken:
    return JoinToken(name, name.ljust(64, "0"), expires, "alice", dict.fromkeys(hosts or (HOST, OTHER)))


def use(store: Store, host: str, sha256: str, name: str = "t1", now: float = NOW) -> str:
    return store.joins.use(name, host, "10.0.0.1", sha256, now)


def done(store: Store) -> list[tuple[str, str, str]]:
    """The audit trail of joining, the oldest first."""
    entries = store.trail.page(JOIN_SUBJECT, None, 1000).entries
    return [(each.actor, each.action, each.detail) for each in reversed(entries)]


USES: list[tuple[list[tuple[str, str]], type[Exception] | None]] = [
    ([(HOST, A)], None),
    ([(HOST, A), (HOST, A)], None),
    ([(HOST, A), (HOST, B)], StateError),
    ([(HOST, A), (HOST.upper(), B)], StateError),
    ([(HOST, A), (OTHER.lower(), B)], None),
    # Two hosts with one token: a disk was copied, and which of the two would it be good for?
    ([(HOST, A), (OTHER, A)], StateError),
    ([("worker3.example", A)], NotFoundError),
    ([("", A)], NotFoundError),
    ([("*", A)], NotFoundError),
]


@pytest.mark.parametrize(("uses", "refused"), USES)
def test_each_host_joins_once(store: Store, uses: list[tuple[str, str]], refused: type[Exception] | None) -> None:
    store.joins.add(a_token(), NOW)
    *before, last = uses
    for host, digest in before:
        use(store, host, digest)
    known = store.joins.workers()
    if refused is None:
        assert use(store, *last) in (HOST, OTHER)
    else:
        with pytest.raises(refused):
            use(store, *last)
        assert store.joins.workers() == known


def test_a_token_is_good_until_its_end(store: Store) -> None:
    store.joins.add(a_token(), NOW)
    assert use(store, HOST.upper(), A, now=END - 1) == HOST
    (listed,) = store.joins.listed(END - 1)
    assert listed.hosts == {HOST: Joined(END - 1, "10.0.0.1", A), OTHER: None}
    assert store.joins.listed(END) == ()
    with pytest.raises(NotFoundError):
        use(store, OTHER, B, now=END)
    # Who has joined stays.
    assert [each.host for each in store.joins.workers()] == [HOST]


def test_tokens_are_bounded_and_removed_ones_are_gone(store: Store) -> None:
    for number in range(MOST_TOKENS):
        store.joins.add(a_token(f"t{number}", HOST), NOW)
    with pytest.raises(BusyError):
        store.joins.add(a_token("more"), NOW)
    store.joins.remove("t0", "bob", NOW)
    for wrong in (lambda: store.joins.remove("t0", "bob", NOW), lambda: use(store, HOST, A, "t0")):
        with pytest.raises(NotFoundError):
            wrong()
    store.joins.add(a_token("more"), NOW)
    # What has ended makes room.
    assert len(store.joins.listed(NOW)) == MOST_TOKENS
    store.joins.add(a_token("later", HOST, expires=END + 9), END)
    assert [each.id for each in store.joins.listed(END)] == ["later"]


def test_a_revoked_token_does_not_come_back(store: Store) -> None:
    store.joins.add(a_token(), NOW)
    use(store, HOST, A)
    store.joins.revoke(HOST.upper(), "bob", NOW)
    assert store.joins.workers() == ()
    with pytest.raises(NotFoundError):
        store.joins.revoke(HOST, "bob", NOW)
    # Neither by its own join token again, nor by another, nor by an older file.
    with pytest.raises(StateError, match="was revoked"):
        use(store, HOST, A)
    store.joins.add(a_token("t2"), NOW)
    with pytest.raises(StateError, match=r"was revoked; remove /etc/lark/worker\.token"):
        use(store, HOST, A, "t2")
    taken = store.joins.take_over((), (JoinedWorker(HOST.upper(), A, NOW),), "a:/state", NOW)
    assert (taken.workers, store.joins.workers()) == ((), ())
    # A token that the worker has made anew is another.
    use(store, HOST, B, "t2")
    assert store.joins.workers() == (JoinedWorker(HOST, B, NOW, "10.0.0.1", "t2"),)
    # And now the first join token is over for good.
    with pytest.raises(StateError):
        use(store, HOST, A)


def test_each_action_is_in_the_trail_without_a_hash(store: Store) -> None:
    store.joins.add(a_token(), NOW)
    use(store, HOST, A)
    use(store, HOST, A)
    store.joins.revoke(HOST.upper(), "bob", NOW)
    store.joins.remove("t1", "carol", NOW)
    with pytest.raises(NotFoundError):
        store.joins.remove("t1", "carol", NOW)
    store.joins.take_over((a_token("t9"),), (JoinedWorker(OTHER, B, NOW),), "a:/state", NOW)
    assert done(store) == [
        ("alice", "join token made", f"t1 until 2023-11-14 23:13:20 UTC for {HOST}, {OTHER}"),
        ("join t1", "worker joined", f"{HOST} from 10.0.0.1"),
        ("bob", "worker's token revoked", HOST),
        ("carol", "join token removed", "t1"),
        ("controller", "joined workers taken over", f"from a:/state: 1 join tokens; workers: {OTHER}"),
    ]


def test_files_are_taken_over_once_and_change_nothing_that_is_known(store: Store) -> None:
    used = JoinToken("t1", A, END, "alice", {HOST: Joined(NOW - 9, "10.0.0.9", B), OTHER: None})
    ended = JoinToken("t0", C, NOW, "alice", {HOST: None})
    workers = (JoinedWorker(HOST, B, NOW - 9, "10.0.0.9", "t1"),)
    taken = store.joins.take_over((used, ended), workers, "a:/state", NOW)
    assert (taken.workers, taken.join_tokens) == ((HOST,), ("t1",))
    assert (store.joins.listed(NOW), store.joins.workers()) == ((used,), workers)
    seen = changes(store, 0).revision
    again = store.joins.take_over((used, ended), workers, "a:/state", NOW)
    assert (again.workers, again.join_tokens, store.joins.changes(seen)) == ((), (), None)
    # Its worker may ask again, as before.
    assert use(store, HOST, B) == HOST
    use(store, OTHER, C)
    older = (JoinedWorker(OTHER, A, NOW - 99), JoinedWorker("worker3.example", C[:-1] + "d", NOW))
    assert store.joins.take_over((), older, "b:/state", NOW).workers == ("worker3.example",)
    assert {each.host: each.sha256 for each in store.joins.workers()}[OTHER] == C
    store.joins.remove("t1", "bob", NOW)
    assert store.joins.take_over((used,), (), "a:/state", NOW).join_tokens == ()
    assert store.joins.listed(NOW) == ()


def changes(store: Store, seen: int) -> JoinChanges:
    found = store.joins.changes(seen)
    assert found is not None
    return found


def test_changes_are_those_since_a_revision(store: Store) -> None:
    nothing = changes(store, 0)
    assert (nothing.whole, nothing.made, nothing.joined) == (True, {}, ())
    store.joins.add(a_token(), NOW)
    use(store, HOST, A)
    first = changes(store, nothing.revision)
    assert not first.whole
    assert (dict(first.made), [each.sha256 for each in first.joined]) == ({"t1": ("t1".ljust(64, "0"), END)}, [A])
    # What changes nothing is no change.
    use(store, HOST, A)
    assert store.joins.changes(first.revision) is None
    use(store, OTHER, B)
    store.joins.revoke(HOST, "bob", NOW)
    store.joins.remove("t1", "bob", NOW)
    second = changes(store, first.revision)
    assert ([each.host for each in second.joined], second.revoked, second.removed) == ([OTHER], (HOST,), ("t1",))
    # A database in the place of the one that was read.
    other = changes(store, second.revision + 100)
    assert (other.whole, other.revision) == (True, second.revision)


@pytest.fixture
def another(store: Store, store_url: str) -> Iterator[Store]:
    """The same database, opened by another controller."""
    opened = Store.open(store_url)
    yield opened
    opened.close()


def test_of_two_controllers_that_are_asked_at_the_same_moment_one_lets_the_worker_join(
    store: Store, another: Store
) -> None:
    hosts = [f"worker{number}.example" for number in range(12)]
    store.joins.add(a_token("t1", *hosts), NOW)
    start = Barrier(4)
    outcomes: dict[str, list[str]] = {host: [] for host in hosts}

    def ask(asked: Store, digit: str) -> None:
        start.wait(60)
        for number, host in enumerate(hosts):
            own = f"{digit}{number:063x}"
            try:
                use(asked, host, own)
            except StateError:
                own = "refused"
            outcomes[host].append(own)

    threads = [Thread(target=ask, args=(asked, str(n))) for n, asked in enumerate((store, another, store, another))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    known = {each.host: each.sha256 for each in another.joins.workers()}
    for host in hosts:
        assert sorted(outcomes[host]) == sorted([known[host], "refused", "refused", "refused"])


def test_who_has_lost_the_term_writes_none_of_it(store: Store, another: Store) -> None:
    store.joins.add(a_token(), NOW)
    use(store, HOST, A)
    before = (store.joins.listed(NOW), store.joins.workers(), done(store))
    another.guard(0, lambda _sentence: None)
    works: tuple[Callable[[], object], ...] = (
        lambda: another.joins.add(a_token("t2"), NOW),
        lambda: use(another, OTHER, B),
        lambda: another.joins.remove("t1", "bob", NOW),
        lambda: another.joins.revoke(HOST, "bob", NOW),
        lambda: another.joins.take_over((a_token("t3"),), (), "a:/state", NOW),
    )
    for work in works:
        with pytest.raises(FencedError):
            work()
    assert (store.joins.listed(NOW), store.joins.workers(), done(store)) == before
    # But it knows what the other has written.
    assert [each.host for each in changes(another, 0).joined] == [HOST]


def test_one_that_stands_by_leaves_the_tables_of_an_older_release_as_they_are(store: Store) -> None:
    me = Identity("0a", "a", "http://a", "1")
    store.instances.register(me)

    downgrade(store, "0010_transfers")
    store.instances.meet(me, "standby", "digest")
    assert [(each.name, each.tokens) for each in store.instances.all().instances] == [("a", "")]
    assert store.joins.changes(0) is None
    store.migrate()
    store.instances.meet(me, "standby", "digest")
    assert [(each.name, each.tokens) for each in store.instances.all().instances] == [("a", "digest")]
    assert changes(store, 0).whole


def test_one_that_stands_by_needs_no_columns_for_its_copy_and_what_it_reads(store: Store) -> None:
    me = Identity("0a", "a", "http://a", "1")
    store.instances.register(me)
    downgrade(store, "0016_term_keys")
    store.instances.meet(me, "standby", "digest", 5, copied_at=0.0)
    (found,) = store.instances.all().instances
    assert (found.tokens, found.copy_age, found.counters_read) == ("digest", None, None)
    store.migrate()
    store.instances.meet(me, "standby", "digest", 5, copied_at=0.0)
    (found,) = store.instances.all().instances
    assert found.copy_age is not None
    assert found.counters_read == 5
    # Of the active one the number of before is nobody's concern.
    store.instances.meet(me, "active", "digest")
    (found,) = store.instances.all().instances
    assert found.counters_read is None


def downgrade(store: Store, revision: str) -> None:
    def down(connection: object) -> None:
        command.downgrade(migrate.configuration(connection), revision)  # type: ignore[arg-type]

    store._database.write(down)


def foreign(digit: str = "d", made: float = NOW, host: str = HOST) -> ForeignJoin:
    return ForeignJoin(digit * 64, host, made)


def come(store: Store, join: ForeignJoin, sha256: str, now: float = NOW, host: str = HOST) -> str:
    return store.joins.use_foreign(join, host, "10.0.0.1", sha256, now)


def test_a_host_joins_by_a_token_that_was_made_elsewhere(store: Store) -> None:
    assert come(store, foreign(), A, host=HOST.upper()) == HOST
    assert store.joins.workers() == (JoinedWorker(HOST, A, NOW, "10.0.0.1", "jwt-dddddddddddd"),)
    assert done(store) == [("join jwt-dddddddddddd", "worker joined", f"{HOST} from 10.0.0.1")]
    seen = changes(store, 0).revision
    # An answer was lost.
    assert come(store, foreign(), A, NOW + 9) == HOST
    assert store.joins.changes(seen) is None
    assert store.joins.listed(NOW) == ()


REFUSED_AFTERWARDS: dict[str, tuple[ForeignJoin, str, str]] = {
    "the same, with another token of its own": (foreign(), B, "has joined from 10.0.0.1 at .* is no newer"),
    "the same, of a clock that is ahead": (foreign(made=NOW + 60), B, "is no newer"),
    "an older one": (foreign("e", NOW - 1), B, "is no newer"),
    "the one that it has itself": (foreign("f", NOW + 60), "f" * 64, "by the token that it has itself; remove"),
    "one with another worker's own": (foreign("f", NOW + 60), C, "has joined with the same token"),
}


@pytest.mark.parametrize("case", REFUSED_AFTERWARDS)
def test_a_token_that_was_made_elsewhere_is_used_once(store: Store, case: str) -> None:
    come(store, foreign(), A)
    come(store, foreign("9", host=OTHER), C, host=OTHER)
    known = store.joins.workers()
    join, own, message = REFUSED_AFTERWARDS[case]
    with pytest.raises(StateError, match=message):
        come(store, join, own, NOW + 30)
    assert store.joins.workers() == known


def test_of_tokens_that_were_made_elsewhere_the_newest_counts(store: Store) -> None:
    come(store, foreign(), A)
    come(store, foreign("e", NOW + 50), B, NOW + 60)
    for join in (foreign(), foreign("f", NOW + 55)):
        with pytest.raises(StateError, match="is no newer"):
            come(store, join, C, NOW + 70)
    # A token of lark join counts, too, and whoever has that needs no newer one.
    store.joins.add(a_token(), NOW + 70)
    use(store, HOST, C, now=NOW + 80)
    with pytest.raises(StateError, match="is no newer"):
        come(store, foreign("f", NOW + 75), A, NOW + 90)
    assert [each.sha256 for each in store.joins.workers()] == [C]


def test_whom_a_revocation_locks_out_comes_back_by_a_newer_token_alone(store: Store) -> None:
    come(store, foreign(), A)
    store.joins.revoke(HOST, "bob", NOW + 60)
    for join, own in ((foreign(), A), (foreign("e", NOW + 59), B)):
        with pytest.raises(StateError, match=r"was revoked at .* is no newer"):
            come(store, join, own, NOW + 61)
    with pytest.raises(StateError, match=r"was revoked; remove /etc/lark/worker\.token"):
        come(store, foreign("f", NOW + 65), A, NOW + 70)
    assert come(store, foreign("f", NOW + 65), B, NOW + 70) == HOST


def test_a_token_that_was_made_elsewhere_is_for_its_own_host(store: Store) -> None:
    for host in (OTHER, "", "*"):
        with pytest.raises(NotFoundError, match=f"is for {HOST}, not for"):
            come(store, foreign(), A, host=host)
    assert store.joins.workers() == ()
