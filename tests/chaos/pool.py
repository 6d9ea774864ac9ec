"""The pool that is played: its policy, what links carry, what a hook posts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lark_controller.flows.model import PORT_LOCAL
from tests.chaos.log import Run

CORE: Final = 0xC0
FIRST_PORT: Final = 10
OWNERS: Final = ("alice", "bob", "carol", "dave", "erin")
# kb/s, also in the policy below.
_WAN: Final = 150_000
_ACCESS: Final = 100_000

CORE_PORTS: Final = {1: "p1", 2: "p2", 3: "p3"}


def edge_ports(slots: int) -> dict[int, str]:
    """The ports of a worker's bridge, by number."""
    return {1: "eth0", PORT_LOCAL: "local", **{FIRST_PORT + number: f"job{number}" for number in range(slots)}}


def policy(databases: Mapping[int, str], turn: int = 0) -> str:
    """A policy for workers with databases at these addresses; another user is kept off the WAN each turn, and every
    other turn groups are sliced.

    The links, and who takes which, stay: a policy may promise more than links carry.
    """
    kept_off = OWNERS[turn % 2]
    workers = "".join(
        f'  w{number}: {{datapath: "{number:016x}", role: edge, host: worker{number}, ovsdb: "{address}"}}\n'
        for number, address in databases.items()
    )
    return f"""\
version: 1
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
  block_prefix: {{ipv4: 28}}
edge: {{uplinks: ["eth*"], speed: 1Gbit}}
switches:
  core1: {{datapath: "{CORE:016x}", role: core, ports: {{lan: 1, wan: 2, wan-fast: 3}}}}
{workers}policies:
  - bandwidth: {{mode: cap}}
  - slice: {{by: {"AcctGroup" if turn % 2 else "Owner"}}}
  - wan: {{when: 'Owner == "{kept_off}"', action: drop, except: [192.0.2.1]}}
  - wan: {{when: 'Owner == "carol"', port: wan-fast}}
groups:
  group_a: {{ceiling: 50Mbit}}
  default: {{ceiling: 40Mbit}}
topology:
  reserves: wan
  links:
    internet: {{between: [core1, wan], capacity: 150Mbit}}
    fast: {{between: [core1, wan-fast], capacity: 150Mbit}}
  hosts:
    default: {{switch: core1, capacity: 100Mbit}}
# turn {turn}
"""


def capacity(workers: int) -> dict[str, int]:
    """The capacity of each direction of each link, in kb/s."""
    found: dict[str, int] = {}
    for name, end in (("internet", "wan"), ("fast", "wan-fast")):
        found |= {f"{name} core1>{end}": _WAN, f"{name} {end}>core1": _WAN}
    for worker in (f"worker{number}" for number in range(1, workers + 1)):
        found |= {f"access:{worker} {worker}>core1": _ACCESS, f"access:{worker} core1>{worker}": _ACCESS}
    return found


def mark(run: Run) -> str:
    """A line that is in this run's ad alone."""
    return f'ChaosMark = "{run.name} by {run.owner}"'


def ads(run: Run) -> bytes:
    """The body that a hook posts of a run."""
    group = "group_a" if run.owner in OWNERS[:2] else "group_b"
    given = "controller" if run.address is None else "static"
    lines = [
        f'GlobalJobId = "{run.name}"', f"JobCurrentStartDate = {run.started}", "ClusterId = 1", "ProcId = 0",
        f'Owner = "{run.owner}"', f'User = "{run.owner}@example"', f'AcctGroup = "{group}"', mark(run),
        *([] if run.rate is None else [f"RequestBandwidth = {run.rate}"]),
        "------",
        f'Machine = "worker{run.worker}"', f'Name = "{run.slot}"', 'LarkNetworkType = "ovs_bridge"',
        f'LarkAddressType = "{given}"', f'LarkExternalInterface = "{run.port}"',
        *([] if run.address is None else [f'LarkInnerAddressIPv4 = "{run.address}"']),
        f'LarkInnerMacAddress = "02:00:00:01:{run.worker:02x}:{int(run.port[3:]):02x}"',
        f'LarkDatapathId = "{run.worker:016x}"',
    ]  # fmt: skip
    return ("\n".join(lines) + "\n").encode()
