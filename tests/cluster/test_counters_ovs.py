"""Counters of a real Open vSwitch that an instance which stands by reads: the switch's own bytes, and each counts once,
also where another takes over in the middle of a reading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from operator import sub
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_common.errors import NotFoundError
from lark_controller.accounting.shares.messages import answer_bytes
from lark_controller.accounting.shares.offers import UNSURE
from lark_controller.cli.run import Service
from lark_controller.reconcile.counters import CounterReader
from lark_controller.rest.forwarding.questions import COUNTERS, Questions
from tests.cluster.test_processes import until
from tests.fixtures.controllers import post
from tests.store.test_claim import settings

pytestmark = [pytest.mark.ovs, pytest.mark.postgres]

DATAPATH = 0xC0FE


@pytest.fixture
def url(postgres_server: Any) -> Iterator[str]:
    made = postgres_server.new_database()
    yield made
    postgres_server.drop_database(made)


class Pool:
    """A switch with the ports of two jobs, and the instances that it is connected to."""

    def __init__(self, folder: Path, url: str, ovs: OpenVSwitch, net: Net, ends: ExitStack) -> None:
        self.folder, self.url, self.ovs, self.net, self.ends = folder, url, ovs, net, ends
        self.bridge = net.name("b")
        self.lost: list[str] = []
        self.targets: list[str] = []
        ovs.add_bridge(self.bridge, DATAPATH)

    def instance(self, name: str) -> Service:
        folder = self.folder / name
        folder.mkdir()
        environ = {"LARK_INSTANCE_NAME": name, "LARK_DATABASE_URL": self.url, "LARK_COUNTER_SECONDS": "0.5"}
        given = settings(folder, **environ, LARK_USAGE_WRITE_SECONDS="0.5")
        service = Service(given, lost=lambda sentence: self.lost.append(f"{name}: {sentence}"))
        self.ends.callback(service.stop)
        return service

    def standing_by(self, name: str) -> Service:
        """An instance that stands by and keeps the switch."""
        service = self.instance(name)
        service.stand_by()
        assert service._kept is not None
        assert service._kept._app is not None
        self.point(service._kept._app.server.addresses[0])
        until(lambda: service._kept is not None and service._kept.count == 1)
        return service

    def point(self, address: tuple[str, int]) -> None:
        """Have the switch connect to one more instance."""
        self.targets.append("tcp:{}:{}".format(*address))
        self.ovs.set_controller(self.bridge, self.targets)

    def begin(self, service: Service) -> None:
        """Post two jobs whose ports are new."""
        hosts = [self.net.host(f"job{n}", addresses=[f"10.64.0.{n}/16"], mac=f"02:00:00:00:00:{n:02x}") for n in (1, 2)]
        self.host, other = hosts
        self.other = other.ipv4
        for here, there in (hosts, hosts[::-1]):
            self.net.exec(here, ["ip", "neigh", "replace", there.ipv4, "lladdr", there.mac, "dev", here.device])
        self.port, _ = (self.ovs.add_port(self.bridge, each.port) for each in hosts)
        jobs = [post(service.controller, n, datapath=DATAPATH, port=each.port).job for n, each in enumerate(hosts, 1)]
        self.job = jobs[0]
        until(lambda: all(reader(service)._ledger.started(each.number) for each in jobs))

    def traffic(self) -> None:
        """Have the job send something."""
        ping = ["ping", "-n", "-q", "-i", "0.01", "-c", "50", "-W", "1", "-s", "1000", self.other]
        self.net.exec(self.host, ping, check=False)

    def counted(self, service: Service) -> tuple[int, int]:
        """Bytes that the job has sent and received by its account."""
        found = reader(service)._ledger.usage(self.job.number)
        assert found is not None
        return found.usage.bytes_out, found.usage.bytes_in

    def passed(self) -> tuple[int, int]:
        """The same by the switch."""
        shown = self.ovs.ofctl(self.bridge, "dump-ports", str(self.port))
        received, sent = re.findall(r"bytes=(\d+)", shown)
        return int(received), int(sent)

    def agree(self, service: Service) -> bool:
        """True where the account has all that passed the port; it never has more."""
        counted, passed = self.counted(service), self.passed()
        assert all(one <= two for one, two in zip(counted, passed, strict=True))
        return counted == passed


def in_sync(service: Service) -> bool:
    """True once the switch has connected and has its flows."""
    try:
        return service.controller.switches.find(f"{DATAPATH:016x}").in_sync
    except NotFoundError:
        return False


def reader(service: Service) -> CounterReader:
    return service.controller.counters._counters


def result(service: Service, name: str) -> float:
    return float(service.metrics.counters_read.labels(name)._value.get())


async def nobody(_datapath: int) -> None:
    """Reads nothing."""


@pytest.fixture
def pool(tmp_path: Path, url: str, ovs: OpenVSwitch, net: Net) -> Iterator[Pool]:
    with ExitStack() as ends:
        yield Pool(tmp_path, url, ovs, net, ends)


def test_bytes_that_another_has_read_are_the_switchs_own_and_count_once_across_a_takeover(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = pool.instance("a")
    a.start()
    pool.point(a.controller.openflow_addresses[0])
    until(lambda: in_sync(a))
    b = pool.standing_by("b")
    pool.begin(a)
    # Not before the active one has read the jobs itself, with flows that were there already. A switch that has not
    # answered once is not ordered of it for a minute.
    until(lambda: result(a, "taken") > 0, 180.0)

    # The active one reads nothing itself meanwhile.
    with monkeypatch.context() as patch:
        patch.setattr(reader(a), "_read_here", nobody)
        before, taken = pool.counted(a), result(a, "taken")
        pool.traffic()
        until(lambda: pool.agree(a), 180.0)
        sent, _ = pool.counted(a)
        assert sent >= before[0] + 50 * 1000
        assert result(a, "taken") > taken

    # One has read the switch, and stands still before it answers.
    kept, counters = b._kept, b._counters
    assert kept is not None
    assert counters is not None
    read, reached, goes_on = kept.read_counters, Event(), Event()

    def stand_still(*asked: Any) -> Any:
        found = read(*asked)
        if (known := found.get(DATAPATH)) is not None and known.took <= UNSURE and not reached.is_set():
            reached.set()
            goes_on.wait()
        return found

    pool.ends.callback(goes_on.set)
    monkeypatch.setattr(kept, "read_counters", stand_still)
    assert reached.wait(180)
    # What has passed by then the active one reads itself, and what it has written is where the next one goes on.
    pool.traffic()
    until(lambda: pool.agree(a))
    written = pool.counted(a)
    until(lambda: min(map(sub, stored(a, pool), written)) >= 0)

    # It gives no sign of life any more, and goes on with all else.
    monkeypatch.setattr(a.member, "_turn", lambda: None)
    taking_over = Thread(target=b.serve)
    taking_over.start()
    pool.traffic()
    until(lambda: b.serves)
    taking_over.join()
    goes_on.set()
    until(lambda: counters._done is not None)
    until(lambda: pool.agree(b))
    # The one before may write nothing.
    until(lambda: pool.lost)
    assert pool.lost[0].startswith("a: ")
    assert " has taken over" in pool.lost[0]

    # The answer comes in the next term, by one that has its key: it is the answer to nothing.
    c = pool.standing_by("c")
    assert counters._done is not None
    token, _, switches = counters._done
    assert [(each.datapath, len(each.steps)) for each in switches] == [(DATAPATH, 2)]
    questions = Questions(c.active, c.member.standing, COUNTERS, b.member.me.id)
    late = result(b, "late")
    until(lambda: questions.ask(answer_bytes(token, 0.0, switches)) is not None)
    assert result(b, "late") > late
    taken = result(b, "taken")
    until(lambda: result(b, "taken") > taken, 180.0)
    pool.traffic()
    until(lambda: pool.agree(b))

    # What the database has at its end is no more either.
    sent, received = pool.counted(b)
    assert sent >= written[0] + 100 * 1000
    b.controller.jobs.end(pool.job.id, "test")
    until(lambda: b.store.usage.of_jobs([pool.job.number])[pool.job.number].final)
    last = stored(b, pool)
    assert all(one <= two <= three for one, two, three in zip((sent, received), last, pool.passed(), strict=True))


def stored(service: Service, pool: Pool) -> tuple[int, int]:
    """Bytes that the job has sent and received by what is written."""
    found = service.store.usage.of_jobs([pool.job.number]).get(pool.job.number)
    return (0, 0) if found is None else (found.usage.bytes_out, found.usage.bytes_in)
