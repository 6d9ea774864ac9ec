"""Rates, limits and sentences of guarantees at their edges: paths, groups, queues of workers, deliveries."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

import pytest

from lark_common.errors import CapacityError, PathError
from lark_controller.policies.file import load
from lark_controller.policies.model import Duplex, GroupControl, LinkSpec
from lark_controller.qos.admission import ReservedCapacity, rates_of, shortages
from lark_controller.qos.delivery import Counters, deliveries
from lark_controller.qos.groups import (
    GroupPort,
    GroupRemark,
    group_plan,
    has_queue,
    is_policed,
    notices,
    shortcomings,
    told,
    treatments,
)
from lark_controller.qos.queues import Queue, bits
from lark_controller.qos.topology import Channel, Topology, access_link, carried_rate, channels, requested_rate
from lark_controller.qos.worker_queues import Claim, QueueDemand, Way, carried, worker_queue_plan

SITE = """\
version: 1
topology:
  links:
    up: {between: [rack, core], capacity: 100}
    server: {between: [files.a.example, core], capacity: 50, duplex: half}
    wan: {between: [core, wan], capacity: 80}
    wan2: {between: [core, wan2], capacity: 80}
    lone: {between: [island, hut], capacity: 5}
  hosts:
    w1.a.example: {switch: rack, capacity: 10, addresses: [10.0.0.1]}
    w1.b.example: {switch: rack, duplex: half}
    w2.a.example: {switch: core, capacity: 20}
    default: {switch: rack}
"""


def site(text: str = SITE, **workers: float) -> Topology:
    spec = load(text).topology
    assert spec is not None
    return Topology(spec, {name.replace("_", "."): rate for name, rate in workers.items()})


# -- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("megabits", "requested", "carried_kbps"),
    [
        (1, 1000, 1000),
        (0.0001, 1, 0),
        (0.0014, 2, 1),
        (0.1 + 0.2, 300, 300),
        (1.0000001, 1001, 1000),
        (2.3, 2300, 2300),
        (65803.1, 65_803_100, 65_803_100),
        (2097689.3, 2_097_689_300, 2_097_689_300),
    ],
)
def test_requests_are_rounded_up_and_links_down(megabits: float, requested: int, carried_kbps: int) -> None:
    """To whole kb/s, but for what binary fractions add or take."""
    assert (requested_rate(megabits), carried_rate(megabits)) == (requested, carried_kbps)


def test_a_channel_is_a_direction_or_a_half_duplex_link() -> None:
    full = LinkSpec("l", ("a", "b"), 1.5, Duplex.FULL)
    assert channels(full) == (Channel("l", "a", "b", 1500), Channel("l", "b", "a", 1500))
    assert [each.key for each in channels(full)] == ["l a>b", "l b>a"]
    half = LinkSpec("l", ("a", "b"), 1.5, Duplex.HALF)
    assert channels(half) == (Channel("l", "", "", 1500),)
    assert channels(half)[0].key == "l"


# -- the declared network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("W2", "w2.a.example"),
        ("files", "files.a.example"),
        ("rack", "rack"),
        ("W2.A.example", "w2.a.example"),
        ("w9", "w9"),
        ("w2.b.example", "w2.b.example"),
        ("default", "default"),
    ],
)
def test_a_host_may_be_called_by_its_first_part(name: str, node: str) -> None:
    assert site().called(name) == node


def test_a_first_part_of_several_hosts_names_none() -> None:
    with pytest.raises(
        PathError, match=r"hosts of the policy's topology are called W1: w1\.a\.example, w1\.b\.example"
    ):
        site().called("W1")


def test_what_is_declared() -> None:
    net = site(w1_b_example=7.0, w9=3.0)
    assert [net.has(name) for name in ("Rack", "W1.a.Example", "wan2", "w9", "nowhere")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [net.is_end(name) for name in ("rack", "files.a.example", "w1.a.example")] == [True, True, False]
    assert net.connected(["wan"]) == {"wan", "wan2", "core", "rack", "files.a.example"}
    assert net.connected(["hut", "nowhere"]) == {"hut", "island"}
    assert net.host_at(IPv4Address("10.0.0.1")) == "w1.a.example"
    assert net.host_at(IPv4Address("10.0.0.2")) is None
    assert [net.learns_from(name) for name in ("w1.b.example", "W9", "w1.a.example", "rack")] == [
        True,
        True,
        False,
        False,
    ]
    declared = {link.name: link.capacity for link in net.declared()}
    assert declared == {
        "up": 100, "server": 50, "wan": 80, "wan2": 80, "lone": 5, "access:w1.a.example": 10,
        "access:w1.b.example": 7, "access:w2.a.example": 20, "access:w9": 3,
    }  # fmt: skip
    # The default has no capacity: only a worker that has reported its own has a link.
    assert {link.name for link in net.declared(["w8", "W9"])} == declared.keys()
    with_default = site(SITE.replace("default: {switch: rack}", "default: {switch: rack, capacity: 4}"))
    assert [link.name for link in with_default.declared(["W8", "w1.a.example", "rack"])][-1] == "access:w8"


def test_the_access_link_of_a_host() -> None:
    spec = site().spec
    assert access_link(None, "w1.a.example") is None
    assert access_link(spec, "W1.A.example") == spec.hosts["w1.a.example"]
    assert access_link(spec, "w9") == spec.default
    found = access_link(spec, "rack")
    assert isinstance(found, LinkSpec)
    assert found.name == "up"
    (access,) = [link for link in site().declared() if link.name == "access:w1.a.example"]
    assert (access.ends, access.duplex) == (("w1.a.example", "rack"), Duplex.FULL)


def test_paths_end_at_the_hosts_themselves() -> None:
    net = site(w1_b_example=7.0)

    def path(source: str, target: str) -> list[str]:
        return [each.key for each in net.path(source, target)]

    assert path("files.a.example", "w1.a.example") == [
        "server", "up core>rack", "access:w1.a.example rack>w1.a.example",
    ]  # fmt: skip
    assert path("W1.b.example", "w1.a.example") == ["access:w1.b.example", "access:w1.a.example rack>w1.a.example"]
    assert path("w1.a.example", "rack") == ["access:w1.a.example w1.a.example>rack"]
    assert path("wan", "wan2") == ["wan wan>core", "wan2 core>wan2"]
    assert path("rack", "RACK") == []
    with pytest.raises(PathError, match=r"no path from w1\.a\.example to hut"):
        path("w1.a.example", "hut")


def test_a_guarantee_of_a_host_without_an_access_link() -> None:
    assert rates_of(site().host("files.a.example", 5)) == {"server": 10}
    with pytest.raises(PathError, match="core hangs on 4 links, and none of them is its access link"):
        site().host("core", 5)


# -- admission --------------------------------------------------------------------------------------------------------

ONE, TWO = Channel("one", "a", "b", 100), Channel("two", "b", "c", 50)


def test_a_link_is_full_and_not_more() -> None:
    full = ReservedCapacity().admit("x", ((ONE, 100), (TWO, 50)))
    assert full.best_effort([ONE, TWO]) == {ONE.key: 0, TWO.key: 0}
    with pytest.raises(CapacityError):
        ReservedCapacity().admit("x", ((ONE, 101),))
    assert shortages({}, ((ONE, 100),)) == ()
    (short,) = shortages({ONE.key: 60}, ((ONE, 41), (TWO, 50)))
    assert (short.link, short.source, short.target) == ("one", "a", "b")
    assert (short.capacity, short.reserved, short.asked) == (0.1, 0.06, 0.041)


def test_a_change_counts_without_what_the_same_reservation_held() -> None:
    held = {ONE.key: 30}
    assert shortages({ONE.key: 100}, ((ONE, 30),), held) == ()
    (short,) = shortages({ONE.key: 100}, ((ONE, 31),), held)
    assert short.reserved == 0.07
    # On a link that became too small, less or the same is never short.
    assert shortages({ONE.key: 130}, ((ONE, 30),), held) == ()
    assert len(shortages({ONE.key: 130}, ((ONE, 31),), held)) == 1
    changed = ReservedCapacity({ONE.key: 100, TWO.key: 5}).admit("x", ((ONE, 20),), {ONE.key: 30, TWO.key: 5})
    assert changed.reserved == {ONE.key: 90}
    assert changed.release({ONE.key: 40}).reserved == {ONE.key: 50}
    assert changed.release({ONE.key: 90}).reserved == {}
    assert changed.best_effort([ONE, TWO]) == {ONE.key: 10, TWO.key: 50}


# -- groups -----------------------------------------------------------------------------------------------------------


def groups(*lines: str) -> str:
    return "version: 1\ngroups:\n" + "".join(f"  {line}\n" for line in lines)


def test_a_group_is_treated_by_its_meter_or_queue() -> None:
    policy = load(groups("a: {ceiling: 2.5, dscp: 5}", "b: {ceiling: 3, burst: 0.4, dscp: 6}", "c: {queue: 0, dscp: 7}",
                         "d: {dscp: 8}", "e: {ceiling: 0.0001, dscp: 9}"))  # fmt: skip

    def found(most: int, control: GroupControl = GroupControl.METERS) -> list[tuple[int, int | None, int | None, int]]:
        return [(each.dscp, each.queue, each.rate, each.burst) for each in treatments(policy, most, control)]

    assert found(9) == [(5, None, 2500, 2000), (6, None, 3000, 400), (7, 0, None, 0), (9, None, 0, 1)]
    assert [each[0] for each in found(5)] == [5, 7]
    assert [each[0] for each in found(4)] == [7]
    assert [each[0] for each in found(0, GroupControl.PREPROVISIONED)] == [7]
    assert found(9, GroupControl.QUEUES) == []


def test_what_takes_a_queue_or_a_meter() -> None:
    lines = ("a: {guarantee: 1}", "b: {ceiling: 1}", "c: {priority: 1}", "d: {priority: -1}", "e: {dscp: 9}",
             "f: {queue: 3}", "g: {ceiling: 1, queue: 3}")  # fmt: skip
    found = {group.name: group for group in load(groups(*lines)).groups}
    assert [name for name, group in found.items() if has_queue(group)] == ["a", "b", "c", "d", "g"]
    assert [name for name, group in found.items() if is_policed(group)] == ["b"]
    assert not any(is_policed(group, GroupControl.QUEUES) for group in found.values())


def said(remarks: Iterable[GroupRemark]) -> list[str]:
    return list(map(str, remarks))


def test_a_remark_that_several_groups_have_is_one_sentence() -> None:
    remarks = [GroupRemark(name, text) for name, text in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("", "z"))]
    assert list(told(remarks)) == ["groups a, c and d: x", "group b: y", "z"]
    assert list(told(remarks[:1])) == ["group a: x"]
    first = load(groups("a: {priority: 2, dscp: 1}", "b: {priority: -1, queue: 3, dscp: 2}"))
    without = "group a: priority is without effect, because a meter can only limit"
    assert list(told(notices(first, GroupControl.METERS))) == [without]
    assert list(told(notices(first, GroupControl.QUEUES))) == []


def test_sentences_about_groups_word_by_word() -> None:
    policy = load(groups("a: {ceiling: 5, guarantee: 2, dscp: 1}", "a.b: {ceiling: 3, dscp: 2}", "a.b.c: {dscp: 3}",
                         "q: {ceiling: 4, queue: 1, dscp: 4}", "w: {when: 'x', ceiling: 6, dscp: 5}",
                         "w.x: {dscp: 6}", "A.z: {when: 'y', dscp: 7}", "n: {dscp: 8}", "n.o: {dscp: 9}"))  # fmt: skip
    levels = "because the queues and meters of this switch have one level"
    below = [
        f"group a.b: what it sends is not counted in the ceiling of a (5 Mb/s), {levels}",
        f"group a.b.c: what it sends is not counted in the ceiling of a.b (3 Mb/s), {levels}",
    ]
    limited = "group a: guarantee 2 Mb/s is not given, because a meter can only limit; groups_by: queues can"
    assert said(notices(policy, GroupControl.METERS)) == [limited, *below]
    assert said(notices(policy, GroupControl.QUEUES)) == below
    assert said(notices(policy, GroupControl.PREPROVISIONED)) == []
    first, *_ = said(shortcomings(policy, 0))
    assert first == (
        "group a: ceiling 5 Mb/s is not enforced, because this switch has no meters; give the group a queue"
    )
    assert said(shortcomings(policy, 4)) == [
        "group w: ceiling 6 Mb/s is not enforced, because this switch has only 4 meters; give the group a queue"
    ]
    assert list(shortcomings(policy, 5)) == []
    rates = "it has no rates on this switch, because it names no queue (groups_by)"
    assert said(shortcomings(policy, 0, GroupControl.PREPROVISIONED)) == [
        f"group {name}: {rates}" for name in ("a", "a.b", "w")
    ]


def test_ranks_are_in_order_of_priority_and_the_last_share_one() -> None:
    policy = load(groups(*(f"g{number}: {{priority: {number}, dscp: {number + 20}}}" for number in range(-5, 6))))
    queues = group_plan(policy, {"p": GroupPort(None, 10.0)}).ports["p"].queues
    assert {dscp: queue.priority for dscp, queue in queues.items()} == {
        25: 0, 24: 1, 23: 2, 22: 3, 21: 4, 19: 6, 18: 7, 17: 7, 16: 7, 15: 7, 0: 5,
    }  # fmt: skip


def test_queues_of_groups_at_a_port_that_is_full() -> None:
    policy = load(groups("a: {guarantee: 10, ceiling: 30, dscp: 1}", "b: {ceiling: 5, dscp: 2}"))
    plan = group_plan(policy, {"p": GroupPort(None, 10.0), "q": GroupPort(None, None)})
    assert said(plan.short) == [
        "the speed of port q is not known, so no group has a queue there; the policy can say it"
    ]
    # The rest has a hundredth of the link at least, and a ceiling no more than the link.
    assert plan.ports["p"].queues == {
        1: Queue(10_000_000, 10_000_000), 2: Queue(0, 5_000_000), 0: Queue(100_000, 10_000_000)
    }  # fmt: skip
    assert plan.ports["p"].rate == 10_000_000
    assert group_plan(load(groups("a: {dscp: 1}")), {"p": GroupPort(None, 10.0)}).ports == {}


def test_the_burst_of_a_queue_is_a_time_at_its_rate() -> None:
    assert (bits(2.5), bits(0.0000014), bits(0.0120014), bits(0.0)) == (2_500_000, 12_000, 12_001, 0)
    assert Queue(1_000_000, 5_000_000).burst == 30_000
    assert Queue(0, 5_000_000).burst == 150_000
    assert Queue(50, 50).burst == 2


# -- queues of workers ------------------------------------------------------------------------------------------------


def demand(number: int, rate: float | None, way: Way = Way.BOTH, **more: object) -> QueueDemand:
    return QueueDemand(Claim.of_job(number), number, f"p{number}", rate, way=way, **more)  # type: ignore[arg-type]  # kept short


def test_sentences_about_uplinks_word_by_word() -> None:
    demands = [demand(1, 70), demand(2, 31), demand(3, 30)]
    plan = worker_queue_plan(demands, {"e0": 100.0})
    assert plan.short == {
        Claim.of_job(
            2
        ): "uplink e0 of 100 Mb/s has 30 Mb/s left, and this job needs 31; it is limited to what it needs, "
        "without a guarantee"
    }
    assert plan.ports["e0"].queues == {
        1: Queue(70_000_000, 70_000_000), 2: Queue(0, 31_000_000), 3: Queue(30_000_000, 30_000_000),
        0: Queue(1_000_000, 100_000_000),
    }  # fmt: skip
    no_speed = worker_queue_plan([demand(1, 70)], {"e0": None, "e1": 100.0}).short
    assert no_speed == {Claim.of_job(1): "the speed of uplink e0 is not known; the policy can say it (speed)"}
    none = worker_queue_plan([demand(1, 70)], {}).short
    assert none == {Claim.of_job(1): "the worker has no uplink as the policy describes them"}


def test_what_is_promised_towards_a_worker_is_not_there_on_a_half_duplex_link() -> None:
    demands = [demand(1, 3), demand(2, 2, Way.IN), demand(3, 4, Way.OUT), demand(4, None)]

    def rates(capacity: float, duplex: str, speed: float | None = 100.0) -> float | None:
        link = f"{{switch: r, capacity: {capacity}, duplex: {duplex}}}"
        policy = load(f"version: 1\ntopology: {{hosts: {{default: {link}}}}}\n")
        return carried({"e0": speed}, policy, "w", demands)["e0"]

    assert rates(20, "full") == 20
    assert rates(20, "half") == 15
    assert rates(20, "half", 12.0) == 12
    assert rates(20, "half", None) == 15
    assert rates(4, "half") == 0.04
    assert carried({"e0": None}, load("version: 1\n"), "w", demands) == {"e0": None}


# -- delivery ---------------------------------------------------------------------------------------------------------

PROMISED = 8_000_000


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        # Less than 95 % was delivered, and packets were dropped.
        (Counters(100, 50, 0), Counters(110, 50 + 9_499_999, 1), True),
        (Counters(100, 50, 0), Counters(110, 50 + 9_500_000, 1), False),
        (Counters(100, 50, 7), Counters(110, 50, 7), False),
        # Packets waited for 80 % of the time, from whatever reading.
        (Counters(100, 0, 0, None, 30.0), Counters(110, 0, 0, None, 38.0), True),
        (Counters(100, 0, 0, None, 30.0), Counters(110, 0, 9, None, 37.9), False),
        (Counters(100, 0, 0, None, 0.0), Counters(110, 0, 0, None, 0.0), False),
        (Counters(100, 0, 0, None, None), Counters(110, 0, 0, None, 10.0), False),
        (Counters(100, 0, 0, None, 5.0), Counters(110, 0, 0, None, None), False),
        # Flows sent half a second's worth more than left the queue.
        (Counters(100, 10, 0, 20), Counters(110, 110, 0, 120 + 500_000), False),
        (Counters(100, 10, 0, 20), Counters(110, 110, 0, 120 + 500_001), True),
        (Counters(100, 10, 0, None), Counters(110, 110, 0, 10**9), False),
        (Counters(100, 10, 0, 20), Counters(110, 110, 0, None), False),
    ],
)
def test_a_guarantee_is_missed_where_more_was_to_be_sent(first: Counters, last: Counters, expected: bool) -> None:
    key = ("e0", 3)
    ((found, delivery),) = deliveries({key: first}, {key: last}, {key: PROMISED})
    assert found == key
    assert delivery.missed is expected
    assert (delivery.promised, delivery.seconds) == (PROMISED, 10)
    assert delivery.delivered == round((last.sent - first.sent) * 0.8)


def test_looks_count_from_five_seconds_on() -> None:
    key = ("e0", 3)

    def found(seconds: float) -> int:
        return len(list(deliveries({key: Counters(50, 0, 0)}, {key: Counters(50 + seconds, 9, 0)}, {key: PROMISED})))

    assert [found(seconds) for seconds in (4.99, 5, 5.01)] == [0, 1, 1]
