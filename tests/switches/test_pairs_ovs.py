"""Advice by pair by the counters of a real Open vSwitch's queues, and of the worker's leaves in them.

The userspace datapath sends nothing through queues. Its ports' devices have them all the same, so packets are put into
their classes at the uplink, as the kernel's datapath does; the controller takes them for the job's.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.openvswitch import OpenVSwitch
from lark_controller.settings import load
from lark_worker.queues.fair_queues import FairQueues
from tests.fixtures.service import WORKER1, Lark, Site, enforcing, wait

pytestmark = pytest.mark.ovs

ASKED = 10  # Mb/s of each flow
FRAME = bytes(12) + b"\x88\xb5" + bytes(1236)
# Open vSwitch's queue n is the class 1:(n + 1) of its HTB.
_HTB = 1 << 16


def policy(site: Site) -> str:
    text = site.policy("bandwidth: {mode: cap}").replace("edge: {", "edge: {speed: 1Gbit, ")
    hosts = "".join(f"    store{n}: {{switch: s, capacity: 1000, addresses: [10.9.0.{n}]}}\n" for n in (1, 2, 3))
    return f"{text}topology:\n  hosts:\n{hosts}    default: {{switch: s, capacity: 1000}}\n"


@contextmanager
def sending(device: str, queue: int, rate: float | None) -> Iterator[None]:
    """Send frames through a queue of a device: so many Mb/s, or as many as it takes (None)."""
    over = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
            wire.bind((device, 0x88B5))
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _HTB | queue + 1)
            wire.settimeout(1.0)
            while not over.is_set():
                try:
                    wire.send(FRAME)
                except OSError:
                    # Its queue is full.
                    over.wait(0.01)
                if rate is not None:
                    over.wait(len(FRAME) * 8 / rate / 1e6)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def started(ovs: OpenVSwitch, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Lark]]:
    monkeypatch.setattr("lark_controller.switches.ovsdb.switch_database.USERSPACE", "")
    for module in ("advice", "pair_advice"):
        monkeypatch.setattr(f"lark_controller.qos.{module}.LEAST_SECONDS", 5.0)
    monkeypatch.setattr("lark_controller.accounting.pairs.LEAST_STRETCH", 2.0)
    read_often = {"LARK_COUNTER_SECONDS": "0.5"}
    monkeypatch.setattr("tests.fixtures.service.load", lambda environ: load(environ | read_often))
    with enforcing(ovs, {"a": WORKER1}, policy, core=False, uplink=True, queues=True) as made:
        yield made


def queues(site: Site) -> list[int]:
    """The numbers of the queues of the job's reserved flows, in the order in which they were reserved."""
    chosen = [flow.split("set_queue:")[1].split(",")[0] for flow in site.flows(WORKER1) if "set_queue" in flow]
    return sorted({number for number in map(int, chosen) if number >= 0x8000})


def test_a_pair_that_uses_a_third_and_one_that_is_throttled(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    uplink = site.net.name("ue1")
    job = lark.post(site.ads("a", "alice"), 0.2).body["id"]
    for number in (1, 2, 3):
        wish = f'{{"source": "{job}", "destination": "10.9.0.{number}", "rate": {ASKED}, "steady": true}}'
        assert lark.request("POST", "/v1/reservations", wish, "application/json").status == 201
    wait(lambda: len(queues(site)) == 3)
    third, full, _ = queues(site)
    fair = FairQueues(f"unix:{ovs.database_socket}")
    fair.start()
    try:

        def pairs() -> dict[str, dict[str, Any]]:
            # What the worker service writes every ten seconds.
            fair.write_now()
            found = lark.get(f"/v1/jobs/{job}/pairs")["pairs"]
            return {each["destination"]: each for each in found}

        def judged() -> bool:
            found = pairs()
            return (found["store1"]["verdict"], found["store2"]["verdict"]) == ("too much", "too little")

        with sending(uplink, third, ASKED / 3), sending(uplink, full, None):
            wait(judged)
        found = pairs()
        # Whatever else the machine does, it sends no more than a third through one, and no more than all by the other.
        assert 0 < found["store1"]["highest"] < 0.5 * ASKED
        assert 1 <= found["store1"]["advised"] <= 0.6 * ASKED
        assert found["store1"]["sentence"].endswith("is enough")
        assert 0 < found["store2"]["highest"] < 1.2 * ASKED
        assert found["store2"]["throttled"] >= 0.05
        assert 1.25 * ASKED <= found["store2"]["advised"] <= 2 * ASKED + 5
        assert found["store3"]["mean"] == 0.0
        assert found["store3"]["sentence"] == "asked for steady 10 Mb/s, used nothing, never throttled: 1 is enough"
        # Nothing is lost of what was counted between the last round and the end.
        made = next(each for each in lark.get("/v1/reservations")["reservations"] if each["destination"] == "store2")
        before = found["store2"]["mean"] * found["store2"]["seconds"]
        assert lark.request("DELETE", f"/v1/reservations/{made['id']}").status == 200
        wait(lambda: len(queues(site)) == 2)
        lark.end({"id": job})
        wait(lambda: not any(each["so_far"] for each in lark.get(f"/v1/jobs/{job}/pairs")["pairs"]))
        ended = {each["destination"]: each for each in lark.get(f"/v1/jobs/{job}/pairs")["pairs"]}
        assert ended["store2"]["mean"] * ended["store2"]["seconds"] >= before * 0.999
        assert ended["store1"]["verdict"] == "too much"
    finally:
        fair.stop()
