"""A WAN port that is down: another takes its place, for what is steered to it and what is sent to its next hop."""

from __future__ import annotations

import pytest

from lark_common.errors import PolicyError
from lark_controller.flows.desired import Desired
from lark_controller.flows.diff import diff
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.simulation.simulate import ConnectionTable, PortView, Tables, run
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.fixtures import frames
from tests.flows.test_pipeline import CORE, a_job, mac

NUMBERS = {"wan": 2, "wan-fast": 3, "wan-spare": 4}
HOPS = {name: f"02:00:00:00:ff:0{number}" for name, number in NUMBERS.items()}
# wan-fast has wan behind it, and wan has wan-spare.
CHAIN = {"wan-fast": "wan", "wan": "wan-spare"}
RING = {"wan-fast": "wan", "wan": "wan-fast"}


def policy(backups: dict[str, str]) -> str:
    ports = ", ".join(
        f'{name}: {{port: {NUMBERS[name]}, next_hop: "{hop}"{f", backup: {backups[name]}" if name in backups else ""}}}'
        for name, hop in HOPS.items()
    )
    return f"""
version: 1
networks: {{jobs: [10.64.0.0/16], local: [10.0.0.0/8]}}
switches:
  core1: {{datapath: "00000000000000c0", role: core, ports: {{lan: 1, {ports}}}}}
policies:
  - wan: {{when: 'Owner == "carol"', port: wan-fast}}
"""


def core(desired: Desired, down: set[str], absent: set[str]) -> Switch:
    ports = {"p1": 1} | {f"p{number}": number for name, number in NUMBERS.items() if name not in absent}
    numbers = {NUMBERS[name] for name in down}
    return place_switch(desired.policy, CORE, ports, normal=True, tracks=True, max_meter=0, down=numbers)


def ways(backups: dict[str, str], down: set[str], absent: set[str] | None = None) -> dict[str, str]:
    """By which port leaves what a steered job sends, and what another one sends to each of the gateways."""
    desired = Desired(load(policy(backups)))
    desired.set_switch(core(desired, down, absent or set()))
    steered, other = a_job(1, "carol"), a_job(2, "alice")
    for job in (steered, other):
        desired.put(job, Decider(desired.policy).of(job))
    tables, names = Tables(desired.build(CORE)), {number: name for name, number in NUMBERS.items()}
    found = {}
    for key, job, gateway in (
        ("steered", steered, HOPS["wan"]),
        *((f"to {name}", other, hop) for name, hop in HOPS.items()),
    ):
        frame = frames.udp(mac(job), gateway, str(job.ipv4), "198.51.100.7")
        passed = run(tables, 1, frame, PortView.of((1, *NUMBERS.values())), ConnectionTable())
        (port,) = passed.ports
        hop = ":".join(f"{passed.headers[0]['eth_dst']:012x}"[at : at + 2] for at in range(0, 12, 2))
        assert hop == HOPS[names[port]], "what leaves by a port is for that port's router"
        found[key] = names[port]
    return found


def table(steered: str, wan: str, fast: str, spare: str = "wan-spare") -> dict[str, str]:
    return {"steered": steered, "to wan": wan, "to wan-fast": fast, "to wan-spare": spare}


@pytest.mark.parametrize(
    ("backups", "down", "expected"),
    [
        (CHAIN, set(), table("wan-fast", "wan", "wan-fast")),
        (CHAIN, {"wan-fast"}, table("wan", "wan", "wan")),
        (CHAIN, {"wan"}, table("wan-fast", "wan-spare", "wan-fast")),
        # A backup that is down, too, has its own; where all are down nothing is any better than the port that is meant.
        (CHAIN, {"wan-fast", "wan"}, table("wan-spare", "wan-spare", "wan-spare")),
        (CHAIN, {"wan-fast", "wan", "wan-spare"}, table("wan-fast", "wan", "wan-fast")),
        (RING, {"wan-fast"}, table("wan", "wan", "wan")),
        (RING, {"wan-fast", "wan"}, table("wan-fast", "wan", "wan-fast")),
        # Without a backup nothing takes its place.
        ({}, {"wan-fast"}, table("wan-fast", "wan", "wan-fast")),
    ],
)
def test_the_backup_takes_the_place_of_what_is_down(
    backups: dict[str, str], down: set[str], expected: dict[str, str]
) -> None:
    assert ways(backups, down) == expected


def test_a_port_that_is_gone_is_as_one_that_is_down() -> None:
    assert ways(CHAIN, set(), {"wan-fast"})["steered"] == "wan"


def test_only_what_concerns_the_port_is_sent() -> None:
    desired = Desired(load(policy(CHAIN)))
    desired.set_switch(core(desired, set(), set()))
    before = desired.build(CORE)
    changes = desired.set_switch(core(desired, {"wan-fast"}, set()))
    assert len(changes) == 5, "a steering rule, a next hop, and what is said to it by ARP and ND"
    assert changes == diff(desired.build(CORE), before)
    back = desired.set_switch(core(desired, set(), set()))
    assert len(back) == 5
    assert desired.build(CORE) == before


@pytest.mark.parametrize(
    "backups", [{"wan": "wan"}, {"wan": "lan"}, {"wan": "wan-other"}], ids=["itself", "no WAN port", "no port"]
)
def test_a_backup_is_another_wan_port_of_the_switch(backups: dict[str, str]) -> None:
    with pytest.raises(PolicyError, match=r"port wan has the backup .* wan-fast, wan-spare"):
        load(policy(backups))
