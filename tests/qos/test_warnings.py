"""Policies that are valid and refuse jobs that ask for bandwidth: they say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_controller.policies.file import load
from lark_controller.policies.model import Policy, SwitchRole
from lark_controller.qos.topology import Demand, Topology
from lark_controller.qos.warnings import QueueMaker, policy_warnings, queue_warnings, worker_warnings

ROOT = Path(__file__).parents[2]

HEAD = "version: 1\nnetworks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}\n"
TRUNK = "links: {up: {between: [r, core1], capacity: 30}, internet: {between: [core1, wan], capacity: 1000}}"
WAN = "links: {internet: {between: [core1, wan], capacity: 1000}}"


def switched_text(*rules: str) -> str:
    core = 'switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}}}\n'
    return f"{HEAD}{core}policies:\n" + "".join(f"  - {rule}\n" for rule in rules)


# A rule that refuses nobody.
ENFORCED = "bandwidth: {mode: cap}"
UNENFORCED = (
    "policies has no bandwidth rule: what a job asks for (RequestBandwidth) is kept free on the links of topology, and"
    " not enforced; a bandwidth rule enforces it"
)


def policy(topology: str, rules: str = ENFORCED) -> str:
    return f"{HEAD}{f'policies: [{rules}]' if rules else ''}\ntopology: {{{topology}}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, []),
        # Where jobs live among other hosts, the controller gives no addresses.
        ("version: 1\n", ["networks.jobs names no network, so the controller has no address to give"]),
        (
            "version: 1\nnetworks: {jobs: [10.64.0.0/30, '2001:db8::/126'], hosts: [10.64.0.0/30, '2001:db8::/126'],"
            " local: [10.0.0.0/8, '2001:db8::/32']}\n",
            [
                "networks.hosts has every IPv4 address of networks.jobs, so",
                "networks.hosts has every IPv6 address of networks.jobs, so",
            ],
        ),
        # The first and last address of a network are no job's.
        (
            "version: 1\nnetworks: {jobs: [10.64.0.0/30], hosts: [10.64.0.1, 10.64.0.2]}\n",
            ["every IPv4 address of networks.jobs but those that no host may have (the first and last of a network)"],
        ),
        ("version: 1\nnetworks: {jobs: [10.64.0.0/30, 10.65.0.0/32], hosts: [10.64.0.1, 10.64.0.2]}\n", []),
        ("version: 1\nnetworks: {jobs: [10.64.0.0/31]}\n", []),
        # A job that could have an address of one version alone is refused.
        (
            "version: 1\nnetworks: {jobs: [10.64.0.0/16, '2001:db8::/127'], hosts: ['2001:db8::', '2001:db8::1']}\n",
            ["networks.hosts has every IPv6 address of networks.jobs, so"],
        ),
        # Rules that no worker can enforce for its jobs without a port on a switch, be they all of a site's.
        (
            "version: 1\npolicies: [{slice: {by: Owner}}]\n",
            [
                "networks.jobs names no network",
                "of NetworkType bridge or nat that a slice rule takes is refused, and one of nat that none takes",
                "networks.local names no IPv4 or IPv6 network, and slices need one where networks.jobs names none",
            ],
        ),
        (
            "version: 1\nnetworks: {local: [10.0.0.0/8]}\npolicies: [{slice: {by: Owner}}]\n",
            [
                "networks.jobs names no network",
                "of NetworkType bridge or nat that a slice rule takes is refused, and one of nat that none takes",
                "every job with an address of IPv6 is refused (AddressType static or dhcp)",
            ],
        ),
        (
            switched_text("{wan: {when: 'Owner == \"a\"', port: wan}}", "{wan: {port: wan}}"),
            ["wan rule in line 6 steers every job that no wan rule before it takes to wan: those of NetworkType nat"],
        ),
        (switched_text("{wan: {action: allow}}", "{wan: {port: wan}}"), []),
        # What is true whatever the ads have is no choice.
        (
            switched_text("{wan: {when: true, port: wan}}", "{wan: {action: allow}}"),
            ["wan rule in line 5 steers every job that no wan rule before it takes to wan: those of NetworkType nat"],
        ),
        (switched_text("{wan: {when: true, action: allow}}", "{wan: {port: wan}}"), []),
        (switched_text("{wan: {when: false, port: wan}}"), []),
        (
            policy("hosts: {default: {switch: rack1}}", "bandwidth: {when: true, mode: cap, default: 20}"),
            ["every job, since bandwidth has a default, is refused"],
        ),
        # No request in whole Mb/s fits there.
        (
            policy("hosts: {a: {switch: r, capacity: 1kbit}, default: {switch: r, capacity: 900kbit}}"),
            [
                "the access link of topology.hosts.a carries 0.001: every job that asks for 1 Mb/s or more is refused",
                "the access link of topology.hosts.default carries 0.9: every job that asks for 1 Mb/s or more",
            ],
        ),
        (
            policy(
                "reserves: wan, links: {up: {between: [r, core1], capacity: 900kbit}, i: {between: [core1, wan],"
                " capacity: 10}}, hosts: {a: {switch: r, capacity: 9}, default: {switch: r, capacity: 9}}"
            ),
            ["link up between topology.hosts.a and the WAN carries 0.9: every job that asks for 1 Mb/s or more"],
        ),
        # A guarantee of what a job cannot send is none.
        (
            policy(
                f"{WAN}, hosts: {{default: {{switch: core1, capacity: 100}}}}",
                "bandwidth: {mode: guarantee, ceiling: 50}",
            ),
            ["line 3 has a ceiling of 50 Mb/s and no maximum: of a job that asks for a guarantee of more, 50 Mb/s are"],
        ),
        (
            policy(
                f"{WAN}, hosts: {{default: {{switch: core1, capacity: 100}}}}",
                "bandwidth: {mode: guarantee, maximum: 50, ceiling: 50}",
            ),
            [],
        ),
        (policy(f"{WAN}, hosts: {{default: {{switch: core1, capacity: 100}}}}"), []),
        # The documented topology, which depends on what machine ads have.
        (policy("hosts: {default: {switch: rack2}}"), ["topology.hosts.default has no capacity"]),
        (
            policy("hosts: {a: {switch: r}, b: {switch: r}, default: {switch: r, capacity: 1}}"),
            ["topology.hosts.a (and 1 more) has no capacity"],
        ),
        # A file server has a capacity or is in nobody's way.
        (policy("hosts: {nfs: {switch: r, addresses: [10.0.0.5]}, default: {switch: r, capacity: 1}}"), []),
        (policy("hosts: {a: {switch: r, capacity: 100}}"), ["topology.hosts has no default"]),
        (
            HEAD + "external:\n  pools: {a: [198.51.100.0/28], b: [198.51.100.16/28]}\n"
            "  zones: {x.org: 60, y.org: 60}\n"
            "  rules:\n    - {pool: a, open: [any], names: '{name}.x.org'}\n"
            "    - {when: 'Owner == \"a\"', pool: a, open: [tcp]}\n",
            [
                "external.rules: no job comes to the rule in line 8: that in line 7 is for every job",
                "external.pools.b: no rule gives addresses of this pool",
                "external.zones: no rule gives names in y.org",
            ],
        ),
        # Of each family its own rules decide, and a rule gives addresses of all of its pools.
        (
            HEAD + "external:\n  pools: {a: [198.51.100.0/28], b: [198.51.100.16/28]}\n"
            "  rules:\n    - {pool: [a, b], open: [any]}\n    - {family: ipv6, open: [tcp]}\n"
            "    - {family: ipv6, when: 'Owner == \"a\"', open: [udp]}\n",
            ["external.rules: no job comes to the rule in line 8: that in line 7 is for every job"],
        ),
        (
            HEAD + "external:\n  pools: {a: [198.51.100.0/28]}\n  rules:\n"
            "    - {when: true, pool: a, open: [any]}\n    - {pool: a, open: [tcp]}\n",
            ["external.rules: no job comes to the rule in line 7: that in line 6 is for every job"],
        ),
        (
            policy("reserves: wan, hosts: {default: {switch: rack2, capacity: 100}}"),
            ["no link of topology.links leads to a WAN"],
        ),
        (
            policy(
                "reserves: wan, links: {internet: {between: [core1, wan], capacity: 1},"
                " inside: {between: [rack1, rack2], capacity: 1}}, hosts: {default: {switch: rack1, capacity: 1}}"
            ),
            ["no path leads from rack1 to a WAN"],
        ),
        (
            policy("hosts: {default: {switch: rack1, capacity: 100}}", "bandwidth: {mode: cap, default: 200}"),
            ["gives every job 200 Mb/s, and the access link of topology.hosts.default carries 100"],
        ),
        (
            policy("hosts: {default: {switch: rack1}}", "bandwidth: {mode: cap, default: 20}"),
            ["every job, since bandwidth has a default, is refused"],
        ),
        # Both directions of a job's guarantee are on a link that is half duplex.
        (
            policy("hosts: {default: {switch: r, capacity: 100, duplex: half}}", "bandwidth: {default: 60}"),
            ["the access link of topology.hosts.default carries 100 in both directions together: such a job"],
        ),
        (policy("hosts: {default: {switch: r, capacity: 100, duplex: half}}", "bandwidth: {default: 50}"), []),
        # A job that reserves its way to the WAN is refused by the narrowest link of it.
        (
            policy(
                f"reserves: wan, {TRUNK}, hosts: {{default: {{switch: r, capacity: 100}}}}", "bandwidth: {default: 50}"
            ),
            ["50 Mb/s, and link up between topology.hosts.default and the WAN carries 30: such a job is refused there"],
        ),
        (policy(f"{TRUNK}, hosts: {{default: {{switch: r, capacity: 100}}}}", "bandwidth: {default: 50}"), []),
        # One WAN that is wide enough is enough, since policy may lead jobs there.
        (
            policy(
                f"reserves: wan, {TRUNK[:-1]}, more: {{between: [r, wan-fast], capacity: 1000}}}},"
                " hosts: {default: {switch: r, capacity: 100}}",
                "bandwidth: {default: 50}",
            ),
            [],
        ),
        # The links behind it count where the access link's capacity comes from machine ads, too.
        (
            policy(f"reserves: wan, {TRUNK}, hosts: {{default: {{switch: r}}}}", "bandwidth: {default: 50}"),
            ["topology.hosts.default has no capacity", "link up between topology.hosts.default and the WAN carries 30"],
        ),
    ],
)
def test_a_policy_says_whom_it_refuses(text: str, said: list[str]) -> None:
    found = policy_warnings(load(text))
    assert len(found) == len(said), found
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence


CORE = 'core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}'
ACCESS_POINT = 'submit1: {datapath: "00000000000000a0", role: access-point, ports: {uplink: eth0}'
EDGE = 'w1: {datapath: "00000000000000e1", role: edge, ports: {uplink: eth0}}'
PROMISED = "groups: {cms: {guarantee: 5, ceiling: 9, dscp: 1}, atlas: {priority: 2, dscp: 2}, low: {dscp: 3}}"
NOT_GIVEN = "group cms: guarantee 5 Mb/s is not given, because a meter can only limit; groups_by: queues can"
NO_ORDER = "group atlas: priority is without effect, because a meter can only limit"
NO_CORE = "groups: no switch is declared as a core, so nothing keeps the rates of what jobs send and receive"


def switched(*switches: str, groups: str = PROMISED, rules: str = "") -> Policy:
    return load(f"{HEAD}switches: {{{', '.join(switches)}}}\n{f'policies: [{rules}]' if rules else ''}\n{groups}\n")


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        # A guarantee by a meter, which is what a core has where the policy does not say.
        ([CORE + "}"], [f"switch core1: {NOT_GIVEN}", f"switch core1: {NO_ORDER}"]),
        ([CORE + ", groups_by: queues}"], []),
        (
            [CORE + ", groups_by: preprovisioned}"],
            ["switch core1: group cms: it has no rates on this switch, because it names no queue (groups_by)"],
        ),
        (
            [CORE + ", groups_by: queues}", ACCESS_POINT + "}"],
            [f"switch submit1: {NOT_GIVEN}", f"switch submit1: {NO_ORDER}"],
        ),
        ([ACCESS_POINT + ", groups_by: queues}"], [NO_CORE]),
        ([EDGE], [NO_CORE]),
        ([], [NO_CORE]),
    ],
)
def test_rates_of_groups_that_nothing_keeps_are_said(switches: list[str], said: list[str]) -> None:
    assert list(policy_warnings(switched(*switches))) == said
    # Groups that mark packets alone promise nothing.
    assert policy_warnings(switched(*switches, groups="groups: {cms: {dscp: 1}, default: {}}")) == ()


def test_a_ceiling_by_a_meter_and_a_queue_that_an_administrator_made_are_kept() -> None:
    kept = "groups: {cms: {ceiling: 9}, atlas: {guarantee: 3, queue: 7}}"
    assert policy_warnings(switched(CORE + "}", groups=kept)) == ()


HOP = 'next_hop: "02:00:00:00:ff:01"'
ACCEPTED = 'its router\'s MAC address, as next_hop: "02:00:00:00:00:01"'


def unused(port: str, backup: str, what: str = "nothing") -> str:
    return (
        f"switches.core1.ports.{port} has the backup {backup} and no next_hop, so while it is down {what} goes by"
        f" {backup}; accepted on each of the two ports: {ACCEPTED}"
    )


def another_mac(port: str, backup: str) -> str:
    return (
        f"switches.core1.ports.{port} has the backup {backup}, which has no next_hop, so while {port} is down packets"
        f" leave by {backup} to the MAC address that they have, mostly that of the jobs' default router, which reaches"
        f" a router there only if it is its own; accepted on {backup}: {ACCEPTED}"
    )


TO_WAN, TO_FAST = "policies: [{wan: {port: wan}}]", "policies: [{wan: {port: wan-fast}}]"
TRANSFER = "networks: {local: [10.0.0.0/8]}\npolicies: [{transfers: {port: wan-fast}}]"


@pytest.mark.parametrize(
    ("ports", "rules", "said"),
    [
        ("wan: {port: 2, backup: wan-fast}, wan-fast: 3", "", [unused("wan", "wan-fast")]),
        ("wan: {port: 2, backup: wan-fast}, wan-fast: {port: 3, HOP}", "", [unused("wan", "wan-fast")]),
        # The first port has also what no rule sends to it.
        ("wan: {port: 2, backup: wan-fast}, wan-fast: 3", TO_WAN,
         [unused("wan", "wan-fast", "what no rule sends to it")]),
        ("wan: {port: 2, HOP, backup: wan-fast}, wan-fast: 3", "", [another_mac("wan", "wan-fast")]),
        ("wan: {port: 2, HOP, backup: wan-fast}, wan-fast: {port: 3, HOP}", "", []),
        # A rule's port is handed over as it is.
        ("wan: 2, wan-fast: {port: 3, backup: wan}", "", [unused("wan-fast", "wan")]),
        ("wan: 2, wan-fast: {port: 3, backup: wan}", TO_FAST, []),
        ("wan: 2, wan-fast: {port: 3, backup: wan}", TRANSFER, []),
        # So is the backup of a backup.
        ("wan: {port: 2, HOP, backup: wan-a}, wan-a: {port: 3, backup: wan-b}, wan-b: 4", "",
         [another_mac("wan", "wan-a")]),
        ("wan: {port: 2, backup: wan-fast}, wan-fast: {port: 3, backup: wan}", "",
         [unused("wan", "wan-fast"), unused("wan-fast", "wan")]),
    ],
)  # fmt: skip
def test_backups_that_are_not_used_as_they_seem_are_said(ports: str, rules: str, said: list[str]) -> None:
    switch = f'{{datapath: "00000000000000c0", role: core, ports: {{lan: 1, {ports.replace("HOP", HOP)}}}}}'
    found = policy_warnings(load(f"version: 1\nswitches: {{core1: {switch}}}\n{rules}\n"))
    assert [each for each in found if "backup" in each] == said


EDGES = [
    QueueMaker("w1", SwitchRole.EDGE, False, "userspace"),
    QueueMaker("w2", SwitchRole.EDGE, False, ""),
    QueueMaker("w3", SwitchRole.EDGE, False, "userspace"),
    QueueMaker("w4", SwitchRole.EDGE, False, "no database"),
]


@pytest.mark.parametrize(
    ("rules", "whose"),
    [
        ("bandwidth: {mode: cap}", "every job that asks for bandwidth"),
        ("bandwidth: {default: 5}", "every job, since bandwidth has a default,"),
    ],
)
def test_switches_that_make_no_queues_are_named_where_jobs_would_wait_for_them(rules: str, whose: str) -> None:
    waits = f"{whose} stays pending with the network type ovs_bridge at"
    assert queue_warnings(switched(EDGE, rules=rules), EDGES) == (
        f"{waits} 2 of 4 switches of workers, which can make no queues; at w1: userspace",
        f"{waits} 1 of 4 switches of workers, which can make no queues; at w4: no database",
    )
    assert queue_warnings(switched(EDGE), EDGES) == ()
    assert queue_warnings(switched(EDGE, rules=rules), EDGES[1:2]) == ()


@pytest.mark.parametrize(
    ("groups", "for_groups", "why", "said"),
    [
        (PROMISED, True, "userspace", ["switch core1: no group has a queue: userspace"]),
        (PROMISED, True, "", []),
        (PROMISED, False, "userspace", []),
        ("groups: {cms: {dscp: 1}}", True, "userspace", []),
    ],
)
def test_a_core_that_makes_no_queues_is_named_where_groups_need_them(
    groups: str, for_groups: bool, why: str, said: list[str]
) -> None:
    makers = [QueueMaker("core1", SwitchRole.CORE, for_groups, why)]
    assert list(queue_warnings(switched(CORE + ", groups_by: queues}", groups=groups), makers)) == said


def test_the_example_of_a_policy_promises_nothing_that_is_not_kept() -> None:
    for path in ("etc/policy.yaml", "demo/policy.yaml"):
        assert policy_warnings(load((ROOT / path).read_text())) == (), path


def test_of_many_workers_and_many_rules_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    host = Topology.host

    def noted(topology: Topology, name: str, kbps: int) -> Demand:
        looked.append(name)
        return host(topology, name, kbps)

    monkeypatch.setattr(Topology, "host", noted)
    hosts = ", ".join(f"w{number}: {{switch: r, capacity: 100}}" for number in range(100))
    topology = f"topology: {{hosts: {{default: {{switch: r, capacity: 100}}, {hosts}}}}}\n"
    for most, said in ((100, 0), (101, 20)):
        looked.clear()
        rules = "".join(f"  - bandwidth: {{default: {number}, when: 'MY.a'}}\n" for number in range(1, most + 1))
        assert len(policy_warnings(load(f"{HEAD}{topology}policies:\n{rules}"))) == said
        assert len(looked) <= 101


def test_the_workers_of_the_pool_are_looked_at() -> None:
    learned = load(policy("hosts: {default: {switch: rack2}}"))
    assert worker_warnings(learned, {"w1": 1000.0}, ["w1"]) == ()
    (sentence,) = worker_warnings(learned, {"w1": 1000.0}, ["w1", "W2", "w3"])
    assert "refused at 2 of 3 workers of this pool; at w2: the capacity of the access link" in sentence
    assert worker_warnings(load(HEAD), {}, ["w1"]) == ()
    # The link in a machine ad, and one that ends at a worker, may hold no job at all.
    text = policy(
        "links: {cable: {between: [w3, rack2], capacity: 10}}, hosts: {default: {switch: rack2}}",
        "bandwidth: {default: 20}",
    )
    (sentence,) = worker_warnings(load(text), {"w1": 1000.0, "w2": 15.0}, ["w1", "w2", "w3"])
    assert sentence == (
        "a job with the default bandwidth of 20 Mb/s is refused at 2 of 3 workers of this pool; at w2: the access link"
        " of w2 carries 15"
    )
    # A job that requests less than the default is refused at none of these.
    every, with_default = worker_warnings(load(text), {"w1": 1000.0}, ["w1", "w2", "w3"])
    assert every.startswith(
        "every job, since bandwidth has a default, is refused at 1 of 3 workers of this pool; at w2"
    )
    assert with_default == (
        "a job with the default bandwidth of 20 Mb/s is refused at 1 of 3 workers of this pool; at w3: the access link"
        " of w3 carries 10"
    )


@pytest.mark.parametrize(
    ("rules", "whose"),
    [
        ("bandwidth: {default: 20}", "every job, since bandwidth has a default, is refused"),
        ("bandwidth: {default: 20, when: 'MY.a'}", "every job that asks for bandwidth is refused"),
        ("bandwidth: {maximum: 20}", "every job that asks for bandwidth is refused"),
    ],
)
def test_jobs_that_a_policy_refuses_are_named(rules: str, whose: str) -> None:
    (sentence,) = policy_warnings(load(policy("hosts: {default: {switch: rack2}}", rules)))
    assert whose in sentence
    (sentence,) = worker_warnings(load(policy("hosts: {default: {switch: rack2}}", rules)), {}, ["w2", "W1"])
    assert sentence.startswith(f"{whose} at 2 of 2 workers of this pool; at w1: ")


def test_of_one_kind_no_more_than_twenty_are_said() -> None:
    pools = ", ".join(f"p{number:02}: [198.51.{number}.0/28]" for number in range(25))
    found = policy_warnings(load(f"{HEAD}external: {{pools: {{{pools}}}, rules: []}}\n"))
    assert found == tuple(f"external.pools.p{number:02}: no rule gives addresses of this pool" for number in range(20))
    hosts = ", ".join(f"h{number:02}: {{switch: r, capacity: 1}}" for number in range(25))
    text = policy(f"hosts: {{{hosts}, default: {{switch: r, capacity: 300}}}}", "bandwidth: {default: 200}")
    short = policy_warnings(load(text))
    assert len(short) == 20
    assert "of topology.hosts.h00 carries 1" in short[0]


@pytest.mark.parametrize(("default", "said"), [(99, False), (100, False), (100.5, True)])
def test_a_default_that_a_link_just_holds_is_no_matter(default: float, said: bool) -> None:
    hosts = "hosts: {default: {switch: r, capacity: 100}}"
    found = policy_warnings(load(policy(hosts, f"bandwidth: {{default: {default}}}")))
    assert bool(found) is said


@pytest.mark.parametrize(
    ("topology", "sentences"),
    [
        (
            "hosts: {b: {switch: r}, a: {switch: r}, c: {switch: r}}",
            [
                "topology.hosts has no default: every job that asks for bandwidth is refused at every host that neither"
                " topology.hosts names nor a link ends at",
                "topology.hosts.a (and 2 more) has no capacity, so each machine ad must have AvailBandwidth"
                " (etc/condor/50-lark.conf sets it): where it has none, every job that asks for bandwidth is refused",
            ],
        ),
        (
            "reserves: wan, hosts: {default: {switch: r, capacity: 5}}",
            [
                "topology.reserves is wan, and no link of topology.links leads to a WAN: every job that asks for"
                " bandwidth is refused everywhere",
            ],
        ),
        (
            "reserves: wan, links: {i: {between: [core, wan], capacity: 1}, x: {between: [p, q], capacity: 1}},"
            " hosts: {h: {switch: p, capacity: 5}, default: {switch: core, capacity: 5}}",
            ["topology.hosts.h: no path leads from p to a WAN: every job that asks for bandwidth is refused there"],
        ),
        (
            "reserves: host, links: {x: {between: [p, q], capacity: 1}}, hosts: {default: {switch: p, capacity: 5}}",
            [],
        ),
    ],
)
def test_sentences_word_by_word(topology: str, sentences: list[str]) -> None:
    assert policy_warnings(load(policy(topology))) == tuple(sentences)
