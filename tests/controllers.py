"""A whole controller with fake switches: how tests start it, connect switches and post jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lark_controller.accountant import Keeping
from lark_controller.ads import parse_post
from lark_controller.controller import Controller
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.metrics import Metrics
from lark_controller.openflow.connection import OpenFlowOptions
from lark_controller.openflow.fake import FakeNetwork, FakeSwitch
from lark_controller.policies.file import load
from lark_controller.status import FlowFilter, FlowStatus, Registered
from lark_controller.store import Store

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
switches:
  core1: {datapath: "00000000000000c0", role: core, max_rules: 60, ports: {lan: 1, wan: 2, wan-fast: 3}}
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop}
"""
OPEN = """
version: 1
networks: {local: [10.0.0.0/8]}
policies: [{slice: {by: Owner}}]
"""
OPTIONS = OpenFlowOptions(
    listen=(("127.0.0.1", 0),), echo_interval=60, apply_timeout=2, handshake_timeout=5, write_timeout=2
)


@contextmanager
def running(
    path: Path, policy: str = POLICY, lease: float = 900, counter_seconds: float = 10.0, check_seconds: float = 0
) -> Iterator[Controller]:
    store = Store.open(f"sqlite:///{path}/lark.db")
    store.migrate()
    version = store.put_policy(policy, load(policy).digest, "test", time.time())
    controller = Controller(
        store,
        version,
        OPTIONS,
        Metrics(),
        lease_seconds=lease,
        check_seconds=check_seconds,
        keeping=Keeping(read_seconds=counter_seconds),
    )
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()
        store.close()


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    with FakeNetwork() as network:
        yield network


def an_edge(datapath: int = 1, **options: object) -> FakeSwitch:
    ports = {1: "uplink", 11: "p1", 12: "p2", 13: "p3", PORT_LOCAL: "br"}
    return FakeSwitch(datapath, ports, **options)  # type: ignore[arg-type]  # options are the switch's own


def a_core() -> FakeSwitch:
    return FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"})


def connect(network: FakeNetwork, controller: Controller, switch: FakeSwitch) -> None:
    network.call(switch.connect(*controller.openflow_addresses[0]))
    until(lambda: controller.switch(f"{switch.datapath:016x}").in_sync)


def until(condition: Callable[[], object], limit: float = 20.0) -> None:
    """The limit only ends a test that has failed already."""
    end = time.monotonic() + limit
    while True:
        try:
            if condition():
                return
        except LookupError:
            pass
        except Exception as error:
            if "no switch has" not in str(error):
                raise
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def post(
    controller: Controller,
    number: int,
    owner: str = "alice",
    *,
    slot: str = "",
    started: int = 1,
    datapath: int = 1,
    address: str | None = "",
    port: str | None = "",
    more: str = "",
    attributes: str = "",
) -> Registered:
    lines = [
        f'Owner = "{owner}"', f'GlobalJobId = "s#{number}.0#1"', f"JobCurrentStartDate = {started}",
        attributes, "------",
        f'Machine = "worker{datapath}"', f'Name = "{slot or f"slot{number}"}@worker{datapath}"',
        f'LarkDatapathId = "{datapath:016x}"', f'LarkInnerMacAddress = "02:00:00:00:00:{number:02x}"', more,
    ]  # fmt: skip
    if address is not None:
        lines.append(f'LarkInnerAddressIPv4 = "{address or f"10.64.0.{number}"}"')
    if port is not None:
        lines.append(f'LarkExternalInterface = "{port or f"p{number}"}"')
    return controller.register(*parse_post("\n".join(lines).encode(), "text/plain"), "hook")


def flows_of(controller: Controller, job: str) -> tuple[FlowStatus, ...]:
    """A job's flows among all of the first switch."""
    found = controller.flows(f"{1:016x}", FlowFilter(), None, 1000, 5)
    assert found.next_cursor is None
    return tuple(flow for flow in found.flows if flow.job == job)


def jobs_flows(switch: FakeSwitch, number: int | None = None) -> int:
    return sum(
        parse(data.cookie).category == Category.JOB and number in (None, parse(data.cookie).number)
        for data in switch.program.flows.values()
    )
