"""Admission control by calculation: whatever comes, goes and changes, no link is over its capacity or loses any."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.errors import CapacityError, PathError
from lark_controller.policies.file import load
from lark_controller.policies.model import Duplex, HostSpec, LinkSpec, TopologySpec
from lark_controller.qos.admission import NOTHING, ChannelRates, ReservedCapacity, rates_of, shortages
from lark_controller.qos.topology import Topology, carried_rate, channels, requested_rate

TREE = """\
version: 1
topology:
  links:
    trunk1: {between: [rack1, core1], capacity: 1Gbit}
    trunk2: {between: [rack2, core1], capacity: 1Gbit}
    wan: {between: [core1, wan], capacity: 500}
  hosts:
    a.example: {switch: rack1, capacity: 1000}
    b.example: {switch: rack1, capacity: 1000}
    c.example: {switch: rack2, capacity: 1000, duplex: half}
    store.example: {switch: core1, capacity: 10Gbit, addresses: [10.0.0.5, 10.0.1.0/24]}
    default: {switch: rack2}
"""


def topology(text: str = TREE) -> Topology:
    spec = load(text).topology
    assert spec is not None
    return Topology(spec, {})


def keys(path: object) -> list[str]:
    return [channel.key for channel in path]  # type: ignore[attr-defined]  # a tuple of channels


def test_a_path_is_the_access_links_and_what_is_between() -> None:
    tree = topology()
    assert keys(tree.path("a.example", "B.Example")) == [
        "access:a.example a.example>rack1",
        "access:b.example rack1>b.example",
    ]
    assert keys(tree.path("a.example", "c.example")) == [
        "access:a.example a.example>rack1",
        "trunk1 rack1>core1",
        "trunk2 core1>rack2",
        "access:c.example",
    ]
    assert keys(tree.path("wan", "store.example"))[0] == "wan wan>core1"
    assert tree.path("a.example", "a.example") == ()
    assert tree.host_at(IPv4Address("10.0.1.7")) == "store.example"
    assert tree.host_at(IPv4Address("10.0.2.7")) is None


def test_all_paths_of_one_length_are_reserved() -> None:
    square = topology(
        "version: 1\ntopology:\n  links:\n"
        + "".join(
            f"    {one}{other}: {{between: [{one}, {other}], capacity: 100}}\n"
            for one, other in (("s", "x"), ("s", "y"), ("x", "t"), ("y", "t"), ("t", "u"), ("s", "z"))
        )
    )
    assert set(keys(square.path("s", "u"))) == {"sx s>x", "sy s>y", "xt x>t", "yt y>t", "tu t>u"}
    assert keys(square.path("x", "t")) == ["xt x>t"]


def test_no_path_leads_through_the_wan() -> None:
    two = topology(
        "version: 1\ntopology:\n  links:\n"
        "    one: {between: [left, wan], capacity: 10}\n    two: {between: [wan, right], capacity: 10}\n"
    )
    assert keys(two.path("left", "wan")) == ["one left>wan"]
    with pytest.raises(PathError, match="no path from left to right"):
        two.path("left", "right")


def test_what_is_not_declared_is_said() -> None:
    tree = topology()
    with pytest.raises(PathError, match=r"the capacity of the access link of w9 is not known.*hosts.default"):
        tree.path("w9", "wan")
    assert tree.learns_from("w9")
    assert not tree.learns_from("a.example")
    assert keys(tree.with_worker("W9", 1000.0).path("w9", "c.example")) == ["access:w9 w9>rack2", "access:c.example"]
    without = topology(TREE.replace("    default: {switch: rack2}\n", ""))
    with pytest.raises(PathError, match="no host w9"):
        without.path("w9", "wan")


def test_a_guarantee_takes_both_directions_and_twice_of_a_half_duplex_link() -> None:
    tree = topology()
    assert rates_of(tree.host("a.example", 300)) == {
        "access:a.example a.example>rack1": 300,
        "access:a.example rack1>a.example": 300,
    }
    assert rates_of(tree.host("c.example", 300)) == {"access:c.example": 600}
    assert rates_of(tree.both_ways("c.example", "wan", 1))["access:c.example"] == 2


def test_the_papers_links_hold_2n_minus_2_flows() -> None:
    """An application on N nodes reserves a flow for every ordered pair; a node's link carries N-1 out and N-1 in."""
    for nodes, share in ((4, 35), (8, 15)):
        names = [f"node{number}" for number in range(nodes)]
        hosts = {name: HostSpec(name, "switch", 210.0 * 8, Duplex.HALF) for name in names}
        paper = Topology(TopologySpec(hosts=hosts), {})
        capacity = ReservedCapacity()
        for source in names:
            for target in names:
                if source != target:
                    capacity = capacity.admit("a flow", paper.flow(source, target, requested_rate(share * 8)))
        assert set(capacity.best_effort(channels(paper.declared()[0])).values()) == {0}
        with pytest.raises(CapacityError):
            capacity.admit("one more", paper.flow("node0", "node1", 1))
        # Where each direction has its capacity, twice as much fits.
        full = Topology(TopologySpec(hosts={name: HostSpec(name, "switch", 1680.0) for name in names}), {})
        capacity = ReservedCapacity()
        for source in names:
            for target in names:
                if source != target:
                    capacity = capacity.admit("a flow", full.flow(source, target, requested_rate(2 * share * 8)))


def test_a_refusal_names_every_short_link_and_what_is_left() -> None:
    tree = topology()
    capacity = ReservedCapacity().admit("x", tree.flow("b.example", "wan", requested_rate(450)))
    with pytest.raises(CapacityError) as caught:
        capacity.admit("600 Mb/s from a.example to wan", tree.flow("a.example", "wan", requested_rate(600)))
    assert [(each.link, each.available, each.asked) for each in caught.value.shortages] == [
        ("trunk1", 550.0, 600.0),
        ("wan", 50.0, 600.0),
    ]
    assert "link wan (core1 to wan) has 50 of 500 Mb/s left, and 600 are asked (others hold 450)" in str(caught.value)
    assert "link trunk1 (rack1 to core1) has 550 of 1000 Mb/s left" in str(caught.value)


def test_a_refused_change_names_what_is_held_already_and_what_is_free_besides() -> None:
    tree = topology()
    demand = tree.flow("a.example", "wan", requested_rate(100))
    capacity = ReservedCapacity().admit("x", tree.flow("b.example", "wan", requested_rate(350))).admit("y", demand)
    with pytest.raises(CapacityError) as caught:
        capacity.admit("z", tree.flow("a.example", "wan", requested_rate(200)), rates_of(demand))
    (short,) = caught.value.shortages
    assert (short.reserved, short.available, short.held, short.asked) == (350.0, 150.0, 100.0, 200.0)
    said = "has 50 of 500 Mb/s left, and 200 are asked in all, 100 of them held already (others hold 350)"
    assert str(caught.value).endswith(f"link wan (core1 to wan) {said}")


def test_a_demand_that_takes_no_more_than_before_is_never_short() -> None:
    tree = topology()
    demand = tree.flow("a.example", "wan", requested_rate(400))
    capacity = ReservedCapacity().admit("x", demand)
    smaller = topology(TREE.replace("capacity: 500", "capacity: 100"))
    now = smaller.flow("a.example", "wan", requested_rate(400))
    assert shortages(capacity.reserved, now, rates_of(demand)) == ()
    assert shortages(capacity.reserved, smaller.flow("a.example", "wan", requested_rate(401)), rates_of(demand)) != ()
    assert capacity.admit("less", smaller.flow("a.example", "wan", 1), rates_of(demand)).reserved["wan core1>wan"] == 1


@given(st.floats(0.001, 1_000_000))
def test_rates_are_never_rounded_in_favour_of_who_asks(megabits: float) -> None:
    assert requested_rate(megabits) >= megabits * 1000 - 1e-3
    assert carried_rate(megabits) <= megabits * 1000 + 1e-3
    assert requested_rate(megabits) - carried_rate(megabits) in (0, 1)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Switches in any shape that is connected, hosts on them, and a WAN."""
    duplex = st.sampled_from(Duplex)
    capacity = st.integers(1, 40).map(float)
    count = draw(st.integers(1, 4))
    links = [
        LinkSpec(f"up{number}", (f"s{number}", f"s{draw(st.integers(0, number - 1))}"), draw(capacity), draw(duplex))
        for number in range(1, count)
    ]
    for number in range(draw(st.integers(0, 2))):
        ends = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2))
        if ends[0] != ends[1]:
            links.append(LinkSpec(f"more{number}", (f"s{ends[0]}", f"s{ends[1]}"), draw(capacity), draw(duplex)))
    links.append(LinkSpec("out", ("s0", "wan"), draw(capacity), draw(duplex)))
    hosts = {
        f"h{number}": HostSpec(f"h{number}", f"s{draw(st.integers(0, count - 1))}", draw(capacity), draw(duplex))
        for number in range(draw(st.integers(1, 4)))
    }
    return Topology(TopologySpec(tuple(links), hosts), {})


OPERATIONS = st.tuples(
    st.sampled_from(("flow", "job", "change", "release")),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(1, 30).map(lambda tenths: tenths / 2),
)


@settings(max_examples=150, deadline=None)
@given(networks(), st.lists(OPERATIONS, max_size=40))
def test_no_order_of_changes_overloads_a_link_or_loses_capacity(
    network: Topology, operations: list[tuple[str, int, int, float]]
) -> None:
    ends = [*network.spec.hosts, "wan"]
    hosts = list(network.spec.hosts)
    capacity = ReservedCapacity()
    live: list[tuple[str, str, ChannelRates]] = []
    for what, one, other, rate in operations:
        before = capacity
        chosen = live[one % len(live)] if live else None
        try:
            if what == "release":
                if chosen is not None:
                    live.remove(chosen)
                    capacity = capacity.release(chosen[2])
            elif what == "change" and chosen is not None:
                source, target, had = chosen
                demand = network.flow(source, target, requested_rate(rate))
                capacity = capacity.admit("change", demand, had)
                live[live.index(chosen)] = (source, target, rates_of(demand))
            elif what == "job":
                host = hosts[one % len(hosts)]
                demand = network.host(host, requested_rate(rate))
                capacity = capacity.admit("job", demand)
                live.append((host, "wan", rates_of(demand)))
            elif what == "flow":
                source, target = ends[one % len(ends)], ends[other % len(ends)]
                demand = network.flow(source, target, requested_rate(rate))
                capacity = capacity.admit("flow", demand)
                live.append((source, target, rates_of(demand)))
        except CapacityError:
            assert capacity is before
        all_channels = [each for link in network.declared() for each in channels(link)]
        left = capacity.best_effort(all_channels)
        assert min(left.values()) >= 0
        for each in all_channels:
            assert left[each.key] == each.capacity - sum(entry[2].get(each.key, 0) for entry in live)
    for _, _, had in live:
        capacity = capacity.release(had)
    assert capacity.reserved == NOTHING


@settings(max_examples=100, deadline=None)
@given(networks(), st.integers(0, 9), st.integers(0, 9))
def test_a_path_back_is_the_path_there(network: Topology, one: int, other: int) -> None:
    ends = [*network.spec.hosts, "wan"]
    source, target = ends[one % len(ends)], ends[other % len(ends)]
    there, back = network.path(source, target), network.path(target, source)
    assert {(each.link, each.source, each.target) for each in there} == {
        (each.link, each.target, each.source) for each in back
    }


def test_a_link_is_declared_once_its_capacity_is_known() -> None:
    """A host's by the policy or its machine ad, a worker's of the default by its machine ad alone."""
    hosts = {"a": HostSpec("a", "core", None), "b": HostSpec("b", "core", 100.0)}
    spec = TopologySpec(hosts=hosts, default=HostSpec("default", "core", None))
    assert [link.capacity for link in Topology(spec, {}).declared(["c"])] == [100.0]
    learned = Topology(spec, {"a": 300.0, "c": 200.0}).declared(["c", "d"])
    assert sorted(link.capacity for link in learned) == [100.0, 200.0, 300.0]
