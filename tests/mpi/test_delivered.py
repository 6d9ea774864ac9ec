"""The delivery of reserved flows, beside what is promised: by counters of a real kernel."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_common.deliveries import Deliveries
from lark_worker.queues.fair_queues import FIRST_RESERVED, RESERVED, FairQueues, Port
from lark_worker.queues.uplinks import index
from tests.worker.pool import Pool, Starter, eventually
from tests.worker.test_bridge_nat import LAN, enforced
from tests.worker.test_jobs import value
from tests.worker.test_shaping import KINDS, asks, device, rates, shaped


def test_a_rate_is_of_the_last_two_readings_and_a_sum_outlives_its_queue() -> None:
    flows: Deliveries[str] = Deliveries()
    flows.read([("a", 1, 1000)], 10.0)
    first = flows.of("a")
    assert first is not None
    assert (first.total, first.rate, first.at) == (1000, None, 10.0)
    flows.read([("a", 1, 3000), ("a", 2, 500)], 11.0)
    both = flows.of("a")
    assert both is not None
    assert (both.total, both.rate, both.seconds) == (3500, 2500.0, 1.0)
    # Too soon for a rate: the reading before stays.
    flows.read([("a", 1, 3100), ("a", 2, 500)], 11.1)
    assert flows.of("a") == both
    # One of the queues is made anew.
    flows.read([("a", 1, 200), ("a", 2, 500)], 13.0)
    anew = flows.of("a")
    assert anew is not None
    assert (anew.total, anew.rate) == (3100 + 200 + 500, 150.0)
    flows.read([], 14.0)
    assert flows.of("a") is None
    assert flows.of("b") is None


@pytest.mark.ovs
@KINDS
def test_a_job_sees_what_was_delivered_beside_what_is_promised(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net) as (pool, site):
        starter, other = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said = enforced(pool, starter, "alice", 1, asks(10))
        others = enforced(pool, other, "bob", 2, asks(10))
        made = pool.client.reserve(value(said, "LarkJobId"), LAN, 50)
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["state"] == "enforced")

        def path() -> Any:
            (found,) = ask(pool, starter)["paths"]
            return found

        # A second after the queue was made there are two readings of it.
        eventually(lambda: path()["delivered"] is not None, 30)
        idle = path()
        assert (idle["reservation"], idle["rate"], idle["delivered"]) == (made["id"], 50.0, 0.0)
        version = ask(pool, starter)["version"]
        unsent = ask(pool, starter, "delivered")
        read_anew = {"age": 0, "delivered_seconds": 0}
        assert unsent["flows"][0] | read_anew == idle | read_anew
        # Nothing more is delivered, so that is waited for.
        assert ask(pool, starter, f"delivered?after={unsent['version']}&wait=0.7")["version"] == unsent["version"]
        rates(pool, site, [(other, device(pool, others))], down=False, seconds=0.5)
        # Another job's packets are none of this one's.
        assert path()["delivered_bytes"] == idle["delivered_bytes"]
        got = list[float]()
        stream = threading.Thread(
            target=lambda: got.extend(rates(pool, site, [(starter, device(pool, said))], down=False, seconds=6.0))
        )
        # The starter runs one command at a time: a process of the job's asks meanwhile.
        watch = Watch(pool, starter)
        stream.start()
        stream.join(60)
        found = watch.end()
        best = max(each["delivered"] for each in found)
        assert 0.8 * 50 <= best <= 1.1 * 50, (best, got)
        assert all(each["age"] < 30 for each in found)
        assert found[-1]["delivered_bytes"] > idle["delivered_bytes"] + 5_000_000
        # A rate that is delivered is no change of paths to be told of, and is one of what was delivered.
        assert ask(pool, starter)["version"] == version
        sent = ask(pool, starter, f"delivered?after={unsent['version']}&wait=30")
        assert sent["version"] != unsent["version"]
        assert sent["flows"][0]["delivered_bytes"] >= found[-1]["delivered_bytes"]

        def reported() -> Any:
            (flow,) = pool.client._json("GET", f"/v1/reservations/{made['id']}/delivered")["flows"]
            return flow

        eventually(lambda: (reported()["delivered_bytes"] or 0) >= found[-1]["delivered_bytes"], 30)
        assert (reported()["reservation"], reported()["promised"]) == (made["id"], 50.0)


class Watch:
    """Asks for a job's paths all the while, from within the job."""

    def __init__(self, pool: Pool, starter: Starter) -> None:
        self._starter = starter
        self._file = starter.scratch / "paths"
        self._file.touch(0o666)
        self._file.chmod(0o666)
        one = f"curl -s --unix-socket {pool.socket} http://lark/v1/paths >>{self._file}; echo >>{self._file}"
        loop = f"while [ ! -e {starter.scratch}/end ]; do {one}; sleep 0.4; done"
        starter.run(f"setpriv --reuid=65534 --regid=65534 --clear-groups --pdeathsig KILL sh -c '{loop}' & :")

    def end(self) -> list[dict[str, Any]]:
        (self._starter.scratch / "end").touch()
        documents = [json.loads(line) for line in self._file.read_text().splitlines() if line.endswith("}")]
        return [path for each in documents for path in each.get("paths", []) if path["delivered"] is not None]


def ask(pool: Pool, starter: Starter, what: str = "paths") -> Any:
    return json.loads(starter.as_user(f"curl -s --unix-socket {pool.socket} 'http://lark/v1/{what}'")[1])


@pytest.mark.ovs
def test_queues_of_open_vswitch_are_counted_by_the_reservations_number(net: Net) -> None:
    port, _ = net.link("up", "out")
    number = 3 * RESERVED + 5
    minor = FIRST_RESERVED + 5 + 1
    for line in (
        f"tc qdisc add dev {port} root handle 1: htb default {minor:x}",
        f"tc class add dev {port} parent 1: classid 1:fffe htb rate 100mbit",
        f"tc class add dev {port} parent 1:fffe classid 1:{minor:x} htb rate 100mbit",
    ):
        subprocess.run(line.split(), check=True, capture_output=True)
    queues = FairQueues("unix:nowhere")
    queues._ports = {port: Port(index(port) or 0, {FIRST_RESERVED + 5: "uuid"})}
    queues._sample(least=0.0)
    first = queues.delivered(number, [number])
    assert first is not None
    # As many frames as the port's statistics say.
    with open("/dev/null", "w") as nowhere:
        subprocess.run(["python3", "-c", SENDER, port], check=True, stdout=nowhere)

    def counted() -> int:
        queues._sample(least=0.0)
        found = queues.delivered(number, [number])
        return 0 if found is None else found.total - first.total

    eventually(lambda: counted() >= 100 * 1000)
    assert counted() < 100 * 1000 + 20_000
    # Of two flows whose numbers may share a queue, nothing is said, nor of one without a queue.
    assert queues.delivered(number, [number, 5]) is None
    assert queues.delivered(6, [6]) is None


SENDER = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0x88B5))
for _ in range(100):
    s.send(bytes(12) + b"\\x88\\xb5" + bytes(986))
"""
