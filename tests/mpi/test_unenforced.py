"""A job is told where what it has reserved is not enforced: by the worker service, of the controller's answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_mpi import held
from lark_mpi.errors import ReservationError
from lark_mpi.held import Flows
from lark_worker.errors import AwayError
from tests.fixtures.ovs import a_net
from tests.mpi.standin import Standin
from tests.mpi.test_lost_answers import JOB, OTHER, Controller, started, wish
from tests.mpi.test_waiting import TOPOLOGY, Two
from tests.worker.pool import POLICY, a_pool_with_queues, eventually
from tests.worker.test_bridge_nat import LAN, enforced
from tests.worker.test_jobs import value
from tests.worker.test_shaping import KINDS, shaped

NO_UPLINK = "the worker has no uplink as the policy describes them"
RECEIVER = f"{1:016x}"


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with temporary_directory() as folder:
        made = Standin(Path(folder), ["a", "b"])
        monkeypatch.setenv("LARK_SOCKET", str(made.sockets[0]))
        monkeypatch.setattr(held, "PAUSE", 0.01)
        yield made
        made.close()


@pytest.mark.ovs
def test_a_job_learns_that_its_reservation_is_not_enforced_and_each_other_reason(ovs: OpenVSwitch) -> None:
    with temporary_directory() as folder, a_net(ovs) as net:
        uplink, _ = net.link("ue1", "out")
        policy = f"{POLICY}{TOPOLOGY}edge: {{uplinks: [{uplink}], speed: 100}}\n"
        with a_pool_with_queues(Path(folder), ovs, net, policy) as pool, ThreadPoolExecutor(1) as threads:
            two = Two(pool)

            def ask(path: str) -> Any:
                return two.ask(two.alice, "GET", path)[1]

            def told(change: Callable[[], object], is_so: Callable[[str], bool]) -> None:
                """Make a change while the job waits; what it is told comes to be so."""
                seen = ask("/v1/paths")
                found = threads.submit(ask, f"/v1/paths?after={seen['version']}&wait=60")
                eventually(lambda: two.waiting() == 1)
                change()
                while not is_so((seen := found.result(60))["paths"][0]["pending"]):
                    found = threads.submit(ask, f"/v1/paths?after={seen['version']}&wait=60")

            status, made = two.ask(two.alice, "POST", "/v1/reservations", {"destination": "files", "rate": 20})
            assert (status, made["state"], made["reason"]) == (201, "registering", "")
            where = f"/v1/reservations/{made['id']}"
            shown = ask(f"{where}?wait=1")
            assert shown["state"] == "pending"
            assert shown["reason"].endswith(NO_UPLINK)
            eventually(lambda: [path["pending"] for path in ask("/v1/paths")["paths"]] == [shown["reason"]])
            # An Open vSwitch of tests switches in user space, where queues have no effect.
            told(lambda: ovs.add_port(pool.bridge, uplink), lambda pending: "userspace datapath" in pending)
            told(lambda: ovs.vsctl("del-port", pool.bridge, uplink), lambda pending: pending.endswith(NO_UPLINK))
            assert ask(where)["state"] == "pending"


@pytest.mark.ovs
@KINDS
def test_what_a_bridge_or_nat_job_has_reserved_is_enforced_by_its_worker(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net) as (pool, _):
        job = value(enforced(pool, pool.starter(1, "alice", kind), "alice", 1), "LarkJobId")
        made = pool.client.reserve(job, LAN, 10)
        assert made["state"] == "registering"
        found = pool.client.reservation(made["id"], 30)
        assert (found["state"], found["reason"]) == ("enforced", "")
        assert [path["pending"] for path in pool.client.watch_paths("worker1")["paths"]] == [""]


class Slow(Controller):
    """A controller at which a reservation is not enforced before ``enforced`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.enforced, self.asked = threading.Event(), threading.Event()
        self.away = False

    def reservation(self, reservation: str, wait: float = 0.0) -> dict[str, Any]:
        if wait:
            self.asked.set()
            if self.away:
                raise AwayError("it is away")
            self.enforced.wait(wait)
        state = "enforced" if self.enforced.is_set() else "registering"
        return super().reservation(reservation) | {"state": state, "reason": ""}


def test_a_share_that_waits_for_its_queue_holds_up_no_renewal_of_another(tmp_path: Path) -> None:
    controller = Slow()
    shares = started(controller, tmp_path)
    first = shares.reserve(JOB, wish(20), 0)[1]["id"]
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(shares.reserve, JOB, wish(30, OTHER), 60)
        assert controller.asked.wait(30)
        assert shares.change(JOB, first, {"rate": 20, "duration": 60})[0] == 200
        assert not found.done()
        controller.enforced.set()
        status, share = found.result(30)
    assert (status, share["rate"], share["state"]) == (201, 30, "enforced")
    assert shares.show(JOB, share["id"], 1)[1] == share


def test_a_share_is_there_though_nobody_tells_how_far_it_is_enforced(tmp_path: Path) -> None:
    controller = Slow()
    controller.away = True
    shares = started(controller, tmp_path)
    status, share = shares.reserve(JOB, wish(30), 10)
    assert (status, share["rate"], controller.rates()) == (201, 30, [30])
    assert shares.release(JOB, share["id"])[0] == 200


def _standing(state: str, _job: int) -> tuple[str, str]:
    return state, f"switch w1: \x1b {NO_UPLINK}"


def test_what_is_not_enforced_is_refused_with_the_reason_and_given_back(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "WAIT", 0.1)
    flows = Flows()
    for state in ("pending", "quarantined"):
        standin.standing = partial(_standing, state)
        with pytest.raises(ReservationError, match=rf"^what is reserved is not enforced: switch w1: \? {NO_UPLINK}$"):
            flows.prepare({RECEIVER: 30.0})
        assert list(standin.rates().values()) == [30.0]
        flows.undo()
        assert standin.rates() == {}
    # It may come to be within the time.
    looks = iter(["pending", "registering", "enforced"])
    standin.standing = lambda _job: (next(looks), "")
    monkeypatch.setattr(held, "WAIT", 60.0)
    flows.prepare({RECEIVER: 30.0})
    flows.commit()
    # Queues that are never made.
    standin.standing = lambda _job: ("registering", "")
    monkeypatch.setattr(held, "LONGEST_WAIT", 0.1)
    with pytest.raises(ReservationError, match="not enforced: its queues are being made"):
        flows.prepare({RECEIVER: 60.0})
    flows.undo()
    assert list(standin.rates().values()) == [30.0]
    # What takes no more asks for nothing, whatever stands in its way by now.
    flows.prepare({RECEIVER: 20.0})
    flows.commit()
    assert list(standin.rates().values()) == [20.0]
    flows.release()


def test_what_was_lost_is_still_shown_as_lost_after_a_refusal(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In C: test_held_in_c.py.
    monkeypatch.setattr(held, "WAIT", 0.1)
    flows = Flows()
    flows.prepare({RECEIVER: 30.0})
    flows.commit()
    standin.reservations.clear()
    standin.standing = partial(_standing, "pending")
    for _ in range(2):
        with pytest.raises(ReservationError, match="not enforced"):
            flows.prepare({RECEIVER: 30.0})
        flows.undo()
        assert standin.rates() == {}
        (flow,) = flows.made().values()
        assert flow.lost == f"the reservation {flow.id} is over"
    standin.standing = lambda _job: ("enforced", "")
    flows.prepare({RECEIVER: 20.0})
    flows.commit()
    assert [(flow.rate, flow.lost) for flow in flows.made().values()] == [(20.0, "")]
    assert list(standin.rates().values()) == [20.0]
    flows.release()


def test_a_worker_service_of_before_tells_nothing_and_nothing_is_refused(standin: Standin) -> None:
    standin.standing = lambda _job: None
    flows = Flows()
    flows.prepare({RECEIVER: 30.0})
    flows.commit()
    assert list(standin.rates().values()) == [30.0]
    flows.release()


def test_one_that_is_over_before_it_is_enforced_is_refused(standin: Standin) -> None:
    def over(_job: int, method: str, path: str) -> bytes | None:
        if method == "GET" and path.startswith("/v1/reservations/"):
            return b'HTTP/1.1 404 Not Found\r\n\r\n{"detail": "no share has that id"}'
        return None

    standin.instead = over
    flows = Flows()
    with pytest.raises(ReservationError, match="no share has that id"):
        flows.prepare({RECEIVER: 30.0})
    flows.undo()
    assert standin.rates() == {}
