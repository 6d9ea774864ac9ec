"""The table of transfers' limits as a value: which connections it names, and what is left when they end."""

from __future__ import annotations

import time
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from lark_common.transfers import SharedRate, Treatment
from lark_worker.records.known_jobs import Key
from lark_worker.rules.table import Set, Table, change
from lark_worker.transfers import inet_diag
from lark_worker.transfers.inet_diag import Connection
from lark_worker.transfers.limits import table

KEYS = [(100, 1), (200, 2), (300, 3)]
treatments = st.builds(
    Treatment,
    st.none() | st.integers(1, 10**11),
    st.none() | st.integers(0, 63),
    st.booleans(),
    st.lists(st.builds(SharedRate, st.sampled_from("ab"), st.integers(8, 9)), max_size=2, unique=True).map(tuple),
)
ports = st.integers(1, 65535)


@st.composite
def connections(draw: st.DrawFn) -> Connection:
    address = st.ip_addresses(v=draw(st.sampled_from([4, 6])))
    return Connection(0, 1, draw(address), 0, 0, draw(address), (draw(ports), draw(ports)))


@given(
    st.dictionaries(st.sampled_from(KEYS), treatments),
    st.lists(st.tuples(st.sampled_from(KEYS), connections()), max_size=8, unique_by=lambda each: each[1]),
)
def test_each_connection_is_in_its_own_jobs_chains_and_in_no_others(
    treated: dict[Key, Treatment], found: list[tuple[Key, Connection]]
) -> None:
    made = table("t", treated, found)
    elements = {way: [each for n in "46" for each in made.sets[way + n].elements] for way in "oi"}
    for way in "oi":
        for each in elements[way]:
            ends, _, chain = each.rpartition(" : goto ")
            assert chain in made.chains
            key, connection = next(
                (key, one)
                for key, one in found
                if ends == f"{one.local} . {one.ports[0]} . {one.remote} . {one.ports[1]}"
                and chain == f"{way}_{key[0]}_{key[1]}"
            )
            assert key in treated
            assert each in made.sets[f"{way}{connection.remote.version}"].elements
    for key, treatment in treated.items():
        inward = made.chains.get(f"i_{key[0]}_{key[1]}")
        outward = made.chains.get(f"o_{key[0]}_{key[1]}")
        limited = treatment.block or treatment.rate is not None or bool(treatment.shared)
        assert (inward is not None) == limited
        assert (outward is not None) == (limited or treatment.dscp is not None)
        if treatment.block:
            assert [each and each.rules for each in (inward, outward)] == [("drop",)] * 2
            continue
        for chain_ in (inward, outward):
            jumps = [rule.removeprefix("jump ") for rule in (chain_.rules if chain_ else ()) if "jump" in rule]
            assert len(jumps) == len(treatment.shared)
            # A rule is a bucket, so each way has a chain of its own with one rule, and equal limits have the same.
            assert all(len(made.chains[name].rules) == 1 for name in jumps)
    open_ = [each for each in treated.values() if not each.block]
    buckets = {limit for each in open_ for limit in each.shared}
    assert sum(name.startswith(("so_", "si_")) for name in made.chains) == 2 * len(buckets)
    # All that a change names is gone again with the next one.
    assert change(made, made) == ""
    bare = table("t", {}, [])
    left = change(bare, made)
    assert all(f"delete chain inet t {chain}\n" in left for chain in made.chains if chain not in bare.chains)


def test_ports_that_are_used_again_are_the_later_jobs() -> None:
    one, other = (
        Connection(cookie, 1, ip_address("10.0.0.1"), 0, 0, ip_address("10.0.0.2"), (7, 9618)) for cookie in (1, 2)
    )
    made = table("t", {KEYS[0]: Treatment(rate=8), KEYS[1]: Treatment(rate=9)}, [(KEYS[0], one), (KEYS[1], other)])
    ends = "10.0.0.2 . 7 . 10.0.0.1 . 9618 : goto"
    assert [made.sets[f"{way}4"].elements for way in "oi"] == [(f"{ends} {way}_200_2",) for way in "oi"]


def test_a_change_of_one_connection_names_no_other() -> None:
    treated = {KEYS[0]: Treatment(rate=8)}
    many = [
        (KEYS[0], Connection(n, n, ip_address("10.0.0.1"), 0, 0, ip_address("10.0.0.2"), (n, 9618)))
        for n in range(1, 20_000)
    ]
    before, after = table("t", treated, many), table("t", treated, many[1:])
    began = time.process_time()
    script = change(after, before)
    assert script.count("\n") == 2
    assert script.count("10.0.0.2 . 1 . 10.0.0.1 . 9618") == 2
    # It took minutes: each element was looked for among all others.
    assert time.process_time() - began < 5


def test_the_maps_of_other_tables_change_as_before() -> None:
    one = Table("inet", "t", sets={"m": Set("d", ("a : x", "b : y"), keyed=True)})
    two = Table("inet", "t", sets={"m": Set("d", ("b : y", "c : z"), keyed=True)})
    assert change(two, one) == "delete element inet t m { a : x }\nadd element inet t m { c : z }\n"


@given(connections(), st.integers(0, 2**64 - 1))
def test_a_request_to_end_a_connection_names_that_one(each: Connection, cookie: int) -> None:
    family = 2 if each.remote.version == 4 else 10
    asked = Connection(cookie, 1, each.remote, 0, 0, each.local, each.ports, family)
    (message,) = inet_diag.messages(inet_diag.destroy_request(asked, 5))
    assert message[:2] == (inet_diag.DESTROY, 5)
    body = message[2][8:]
    assert (int.from_bytes(body[:2]), int.from_bytes(body[2:4])) == each.ports
    assert body[4:].startswith(each.local.packed)
    assert body[20:].startswith(each.remote.packed)
    assert int.from_bytes(body[40:48], "little") == cookie


def test_an_ipv4_connection_of_an_ipv6_socket_is_ended_by_its_mapped_addresses() -> None:
    each = Connection(1, 1, ip_address("10.0.0.1"), 0, 0, ip_address("10.0.0.2"), (1, 2), 10)
    (message,) = inet_diag.messages(inet_diag.destroy_request(each, 5))
    assert message[2][8 + 4 : 8 + 20] == ip_address("::ffff:10.0.0.2").packed
