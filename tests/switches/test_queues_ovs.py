"""Queues on a real Open vSwitch: which rows and flows a job's bandwidth makes, changes and leaves behind.

The userspace datapath has no effect for queues, and says so; what traffic does is measured in the lab.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.openvswitch import OpenVSwitch
from lark_controller.reconcile.queue_obstacles import NO_DATABASE
from tests.fixtures.service import (
    CORE,
    WORKER1,
    Lark,
    Site,
    enforcing,
    wait,
)

pytestmark = pytest.mark.ovs

USERSPACE = "userspace datapath"
HOSTS = {"a": WORKER1, "b": WORKER1}


@pytest.fixture
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    with enforcing(ovs, HOSTS, policy, core=False, uplink=True, queues=True) as made:
        yield made


def policy(site: Site, rule: str = "{mode: cap}") -> str:
    return site.policy(f"bandwidth: {rule}").replace("edge: {", "edge: {speed: 1Gbit, ")


def tables(ovs: OpenVSwitch, *names: str) -> list[list[dict[str, Any]]]:
    """Rows of several tables at one moment."""
    command = " -- ".join(f"list {name}" for name in names).split()
    found = []
    for line in ovs.vsctl("--format=json", *command).splitlines():
        shown = json.loads(line)
        found.append([dict(zip(shown["headings"], row, strict=True)) for row in shown["data"]])
    return found


def rows(ovs: OpenVSwitch, table: str) -> list[dict[str, Any]]:
    return tables(ovs, table)[0]


def queues(ovs: OpenVSwitch) -> dict[str, dict[int, tuple[int, int]]]:
    """(min, max) in Mb/s of each queue of each port that has queues."""
    queue_rows, qos_rows, port_rows = tables(ovs, "queue", "qos", "port")
    made = {row["_uuid"][1]: dict(row["other_config"][1]) for row in queue_rows}
    of = {row["_uuid"][1]: dict(row["queues"][1]) for row in qos_rows}
    found = {}
    for row in port_rows:
        if row["qos"][0] == "uuid":
            found[row["name"]] = {
                number: tuple(int(made[queue[1]].get(key, 0)) // 10**6 for key in ("min-rate", "max-rate"))
                for number, queue in of[row["qos"][1]].items()
            }
    return found  # type: ignore[return-value]  # of two keys come two values


def bandwidth(rate: int) -> dict[str, str]:
    return {"job": f"RequestBandwidth={rate}"}


def post(site: Site, lark: Lark, name: str, owner: str, **more: Any) -> dict[str, Any]:
    answer = lark.post(site.ads(name, owner, **more), 0.2)
    assert answer.status in (200, 201), answer
    body: dict[str, Any] = answer.body
    return body


def chosen(site: Site) -> list[str]:
    return [flow for flow in site.flows(WORKER1) if "set_queue" in flow]


def queues_chosen(site: Site, port: int | None = None) -> set[int]:
    """The queues that flows choose, of one port or of all."""
    flows = [flow for flow in chosen(site) if port is None or f"in_port={port} " in flow]
    return {int(flow.split("set_queue:")[1].split(",")[0]) for flow in flows}


def test_a_jobs_queues_come_change_and_go(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    uplink, a = site.net.name("ue1"), site.hosts["a"].port
    job = post(site, lark, "a", "alice", number=7, **bandwidth(100))
    assert (job["state"], USERSPACE in job["reason"]) == ("pending", True), job
    wait(lambda: chosen(site))
    number = int(chosen(site)[0].split("set_queue:")[1].split(",")[0])
    assert queues(ovs) == {uplink: {0: (900, 1000), number: (100, 100)}, a: {0: (100, 100)}}
    assert all(f"set_queue:{number}" in flow and f"in_port={site.ports['a']} " in flow for flow in chosen(site))
    before = {row["_uuid"][1] for row in rows(ovs, "queue")}
    post(site, lark, "a", "alice", number=7, **bandwidth(300))
    wait(lambda: queues(ovs) == {uplink: {0: (700, 1000), number: (300, 300)}, a: {0: (300, 300)}})
    assert {row["_uuid"][1] for row in rows(ovs, "queue")} == before
    lark.end(job)
    wait(lambda: not queues(ovs) and not rows(ovs, "qos") and not rows(ovs, "queue"))
    assert not chosen(site)


def test_what_a_jobs_queues_drop_is_the_jobs_in_each_direction(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    uplink, a = site.net.name("ue1"), site.hosts["a"].port
    job = post(site, lark, "a", "alice", number=7, **bandwidth(100))
    wait(lambda: chosen(site) and a in queues(ovs))
    number = int(chosen(site)[0].split("set_queue:")[1].split(",")[0])

    def say(port: str, queue: int, waited: int, dropped: int) -> None:
        """The values that the worker service writes into a queue's row."""
        qos = ovs.vsctl("get", "port", port, "qos").strip()
        row = ovs.vsctl("get", "qos", qos, f"queues:{queue}").strip()
        ovs.vsctl("set", "queue", row, f"external_ids:lark-waited={waited}", f"external_ids:lark-dropped={dropped}")

    def used() -> tuple[int, int, float]:
        usage = lark.get(f"/v1/jobs/{job['id']}")["usage"]
        return usage["rate_drops_in"], usage["rate_drops_out"], usage["throttled_seconds"]

    say(uplink, number, 3, 50)
    wait(lambda: used() == (0, 50, 3.0))
    say(a, 0, 2, 7)
    wait(lambda: used() == (7, 50, 5.0))
    # What others share is nobody's.
    say(uplink, 0, 60, 900)
    say(uplink, number, 4, 51)
    wait(lambda: used() == (7, 51, 6.0))
    lark.end(job)
    wait(lambda: not queues(ovs))
    assert used() == (7, 51, 6.0)
    advice = lark.get(f"/v1/jobs/{job['id']}/advice")
    assert (advice["mode"], advice["counts"]) == ("cap", 100)
    assert (advice["dropped_in"], advice["dropped_out"]) == (7, 51)
    assert advice["throttled"] == min(1.0, 6.0 / advice["seconds"])


def test_unlimited_jobs_share_what_is_left(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    b = site.hosts["b"].port
    other = post(site, lark, "b", "bob")
    assert other["state"] == "enforced"
    assert queues(ovs) == {}
    job = post(site, lark, "a", "alice", **bandwidth(600))
    wait(lambda: queues(ovs).get(b) == {0: (400, 400)})
    lark.end(job)
    wait(lambda: queues(ovs) == {})


def test_a_guaranteed_job_and_one_that_asked_for_nothing_have_even_parts(
    started: tuple[Site, Lark], ovs: OpenVSwitch
) -> None:
    site, lark = started
    uplink = site.net.name("ue1")
    lark.put_policy(policy(site, "{mode: guarantee}"))
    free = post(site, lark, "b", "bob", number=8)
    assert (free["state"], queues(ovs), chosen(site)) == ("enforced", {}, [])
    job = post(site, lark, "a", "alice", number=7, **bandwidth(100))
    wait(lambda: len(queues_chosen(site)) == 2)
    by_port = {port: queues_chosen(site, site.ports[port]) for port in ("a", "b")}
    (own,), (part,) = by_port.values()
    shared = {0: (300, 1000), own: (400, 1000), part: (300, 1000)}
    assert queues(ovs)[uplink] == shared
    # They stand through another start of the controller, and nobody is at another queue then.
    before = {row["_uuid"][1] for row in rows(ovs, "queue")}
    lark.stop()
    lark.start()
    lark.wait_in_sync(WORKER1)
    assert (queues(ovs)[uplink], queues_chosen(site)) == (shared, {own, part})
    assert {row["_uuid"][1] for row in rows(ovs, "queue")} == before
    # With a rate of its own it has no part, and both borrow what is left.
    post(site, lark, "b", "bob", number=8, **bandwidth(200))
    wait(lambda: sorted(queues(ovs)[uplink].values()) == [(100, 1000), (200, 1000), (700, 1000)])
    wait(lambda: len(queues_chosen(site, site.ports["b"]) - {part}) == 1)
    post(site, lark, "b", "bob", number=8)
    wait(lambda: queues(ovs)[uplink] == shared)
    # A limit shares nothing, and neither does a guarantee that is one.
    for rule in ("{mode: cap}", "{mode: guarantee, ceiling: 100Mbit}"):
        lark.put_policy(policy(site, rule))
        wait(lambda: queues(ovs)[uplink] == {0: (900, 1000), own: (100, 100)} and queues_chosen(site) == {own})
        lark.put_policy(policy(site, "{mode: guarantee}"))
        wait(lambda: queues(ovs)[uplink] == shared and queues_chosen(site) == {own, part})
    lark.end(job)
    wait(lambda: not queues(ovs) and not chosen(site))


def test_another_policy_changes_rates_in_place(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    uplink, a = site.net.name("ue1"), site.hosts["a"].port
    post(site, lark, "a", "alice", **bandwidth(600))
    wait(lambda: chosen(site))
    kept = chosen(site)
    lark.put_policy(policy(site, "{mode: guarantee, maximum: 500Mbit}"))
    wait(lambda: queues(ovs).get(a) == {0: (1000, 1000)})
    assert sorted(queues(ovs)[uplink].values()) == [(500, 1000), (500, 1000)]
    assert chosen(site) == kept
    lark.put_policy(site.policy())
    wait(lambda: not queues(ovs) and not chosen(site))


def test_a_restart_keeps_what_stands(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    post(site, lark, "a", "alice", **bandwidth(100))
    wait(lambda: chosen(site))
    before = (sorted(row["_uuid"][1] for row in rows(ovs, "queue")), chosen(site))
    lark.stop()
    lark.start()
    lark.wait_in_sync(WORKER1)
    post(site, lark, "b", "bob", **bandwidth(200))
    wait(lambda: len(rows(ovs, "queue")) == 5)
    assert set(before[0]) <= {row["_uuid"][1] for row in rows(ovs, "queue")}
    assert set(before[1]) <= set(chosen(site))


def test_what_others_made_is_left_alone_and_said(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    uplink = site.net.name("ue1")
    ovs.vsctl(
        "set", "port", uplink, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "queues:3=@c",
        "--", "--id=@c", "create", "queue", "other_config:max-rate=5000000",
    )  # fmt: skip
    job = post(site, lark, "a", "alice", **bandwidth(100))
    assert "not Lark's" in job["reason"] or USERSPACE in job["reason"]
    wait(lambda: queues(ovs).get(site.hosts["a"].port))
    assert queues(ovs)[uplink] == {3: (0, 5)}
    assert not chosen(site)
    lark.end(job)
    wait(lambda: queues(ovs) == {uplink: {3: (0, 5)}})
    assert len(rows(ovs, "queue")) == 1


GROUPS = (
    "group_cms: {port: wan, guarantee: 250Mbit, ceiling: 500Mbit, dscp: 18}",
    "group_cms.prod: {guarantee: 100Mbit, priority: 5, dscp: 34}",
    "default: {ceiling: 100Mbit, dscp: 10}",
)


@pytest.fixture
def core(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    with enforcing(ovs, HOSTS, core_policy, queues=True) as made:
        yield made


def core_policy(site: Site, groups: tuple[str, ...] = GROUPS, by: str = "queues") -> str:
    text = site.policy(groups=groups).replace("role: core,", f"role: core, groups_by: {by},")
    text = text.replace("{port: 3, ", "{port: 3, speed: 1Gbit, ").replace("{port: 4, ", "{port: 4, speed: 500Mbit, ")
    return text.replace("lan1: 1", "lan1: {port: 1, speed: 2Gbit}")


# Of three groups: by DSCP in each address family, again for each of two job networks (whose connections need no mark),
# and by the mark of a connection.
CHOSEN = 3 * (2 + 2 + 1)


def test_groups_have_queues_on_every_port_of_a_core_both_ways(core: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = core
    wait(lambda: len(queues(ovs)) == 3)
    lan, wan, fast = site.net.name("l1"), site["gw"].port, site["gwfast"].port
    assert queues(ovs) == {
        wan: {0: (650, 1000), 18: (250, 500), 34: (100, 1000), 10: (0, 100)},
        fast: {0: (400, 500), 34: (100, 500), 10: (0, 100)},
        lan: {0: (1650, 2000), 18: (250, 500), 34: (100, 2000), 10: (0, 100)},
    }
    wait(lambda: len(chosen_at_core(site)) == CHOSEN)
    job = site.run(lark, "a", "alice", job='AcctGroup="group_cms.prod"')
    assert [flow for flow in chosen_at_core(site) if "table=3" in flow and "set_queue:34" in flow and "10.64." in flow]
    said = " ".join(each["problem"] for each in lark.switch(CORE)["problems"])
    assert USERSPACE in said
    assert "group group_cms.prod: what it sends is not counted in the ceiling of group_cms" in said
    lark.end(job)
    wait(lambda: len(chosen_at_core(site)) == CHOSEN)
    lark.put_policy(core_policy(site, by="preprovisioned"))
    wait(lambda: not queues(ovs) and not chosen_at_core(site))


def test_another_policy_says_where_the_database_is(core: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = core
    text, port = core_policy(site), site["gw"].port
    lark.put_policy(core_policy(site, by="preprovisioned"))
    wait(lambda: not queues(ovs))
    lark.stop()
    del lark.environ["LARK_OVSDB"]
    lark.start()
    site.connect(lark)

    def said() -> str:
        return " ".join(each["problem"] for each in lark.switch(CORE)["problems"])

    def at(address: str) -> str:
        return text.replace("groups_by: queues", f"groups_by: queues, ovsdb: '{address}'")

    lark.put_policy(text)
    wait(lambda: NO_DATABASE in said())
    lark.put_policy(at(f"unix:{ovs.directory}/nowhere.sock"))
    wait(lambda: "nowhere.sock cannot be reached" in said())
    lark.put_policy(at(f"unix:{ovs.database_socket}"))
    wait(lambda: len(queues(ovs)) == 3 and USERSPACE in said())
    lark.put_policy(text)
    wait(lambda: NO_DATABASE in said() and USERSPACE not in said())
    # What stands stays, and nobody looks after it.
    ovs.vsctl("clear", "port", port, "qos")
    time.sleep(1)
    assert len(queues(ovs)) == 2
    lark.put_policy(at(f"unix:{ovs.database_socket}"))
    wait(lambda: port in queues(ovs))


def chosen_at_core(site: Site) -> list[str]:
    return [flow for flow in site.flows(CORE) if "set_queue" in flow]
