"""Two releases side by side: processes of the last one and of this one on one database, while instances are upgraded
one after the other as ``docs/how-to/several-controllers.md`` has it.

The last release is unpacked from an archive (:mod:`tests.cluster.last_release`), so there is no history of commits to
be had. Switches are played; they count what changes on them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psycopg
import pytest

from bench.fleet import CORE_PORTS, Mastered, edge_ports, port_infos
from fake_switch.switch import FakeNetwork
from lab.postgres import PostgresServer
from lark_controller.cli.run import HANDED_OVER
from lark_controller.switches.openflow import roles
from lark_controller.switches.openflow.replies import PortInfo
from tests.cluster import last_release
from tests.cluster.test_handed_on_switches import all_in_sync
from tests.cluster.test_kept_switches import PATIENT, listens
from tests.cluster.test_processes import Instance, until

pytestmark = pytest.mark.postgres

SCRIPT = Path(__file__).with_name("requests_of_a_worker.py")
CORE = 0xC0
POLICY = f"""
version: 1
networks: {{jobs: [10.64.0.0/16], local: [10.0.0.0/8]}}
edge: {{uplinks: ["eth*"], speed: 1Gbit}}
switches:
  core1: {{datapath: "{CORE:016x}", role: core, ports: {{lan: 1, wan: 2}}}}
  w1: {{datapath: "{1:016x}", role: edge, host: worker1}}
policies: [{{slice: {{by: Owner}}}}]
topology:
  reserves: wan
  links:
    internet: {{between: [core1, wan], capacity: 100}}
  hosts:
    default: {{switch: core1, capacity: 1000}}
"""
# Mb/s that the link to the outside has, and those that a job asks for; of two jobs a third finds no room.
RATE = 45
ADS = """\
GlobalJobId = "submit.example#{number}.0#1700000000"
JobCurrentStartDate = 1700000000
ClusterId = {number}
ProcId = 0
Owner = "alice"
User = "alice@example"
AcctGroup = "group_cms"
------
Machine = "worker1"
Name = "slot1_{number}@worker1"
LarkNetworkType = "ovs_bridge"
LarkExternalInterface = "job{port}"
LarkDatapathId = "0000000000000001"
LarkInnerMacAddress = "02:00:00:00:00:{number:02x}"
LarkInnerAddressIPv4 = "10.64.0.{address}"
"""
OF_A_WORKER = """\
GlobalJobId = "submit.example#90.0#1700000000"
JobCurrentStartDate = 1700000000
Owner = "bob"
------
Machine = "worker9"
Name = "slot1_1@worker9"
LarkNetworkType = "bridge"
LarkInnerMacAddress = "02:00:00:00:09:01"
LarkInnerAddressIPv4 = "10.64.9.1"
"""


class Old(Mastered):
    """A switch whose ports are a day older than all jobs: what they had counted before a job came is not the job's."""

    def __init__(self, datapath: int, ports: dict[int, PortInfo]) -> None:
        super().__init__(datapath, ports)
        self._made -= 86_400
        self.busy = True


class Count(NamedTuple):
    """The packets in a job's account, and those that its switch had counted at the latest by then."""

    account: int
    switch: int


@dataclass
class Site:
    """``a`` is of the last release and active, ``b`` of this one and stands by; each switch is connected to both.

    ``posted`` are the jobs that were confirmed, with the packets that their switch had counted before.
    """

    a: Instance
    b: Instance
    url: str
    network: FakeNetwork
    switches: list[list[Mastered]]
    posted: dict[str, int] = field(default_factory=dict)

    def asked(self, question: str) -> set[str]:
        """The first column of the database's answer."""
        with psycopg.connect(self.url) as connection:
            return {str(row[0]) for row in connection.execute(question).fetchall()}

    def tables(self) -> set[str]:
        """The version of the database's tables."""
        return self.asked("SELECT version_num FROM alembic_version")

    def post(self, instance: Instance, number: int, rate: int = 0, address: int = 0) -> int:
        """Post a job, which is confirmed when it is taken; returns the status."""
        ads = ADS.format(number=number, port=number - 1, address=address or number)
        ads = f"RequestBandwidth = {rate}\n{ads}" if rate else ads
        counted = self.switches[0][0].packets()
        status, body = instance.ask("/v1/jobs?wait=10", "POST", ads)
        if status == 201:
            assert body["state"] == "enforced", body
            self.posted[body["id"]] = counted
        return status

    def promises_nothing_twice(self, instance: Instance) -> None:
        """Ask this instance for what jobs have already."""
        assert self.post(instance, 6, rate=RATE) == 409
        assert self.post(instance, 7, address=1) == 409
        assert instance.live() == self.posted.keys()

    def counted(self, instance: Instance, before: Mapping[str, Count] = MappingProxyType({})) -> dict[str, Count]:
        """The counts of each job by a reading of its switch: no packet since those of ``before`` is missing, and none
        is counted twice."""
        edge, found = self.switches[0][0], {}
        for job, at_start in self.posted.items():
            asked = edge.packets()
            since = before.get(job, Count(0, asked))
            usage = instance.ask(f"/v1/jobs/{job}?fresh=true")[1]["usage"]
            found[job] = count = Count(usage["packets_out"], edge.packets())
            assert usage["packets_in"] == count.account
            assert since.account + asked - since.switch <= count.account <= count.switch - at_start
        return found

    def reconnect(self, instance: Instance) -> None:
        """Connect the switches to an instance that was started again."""
        until(lambda: listens(instance.openflow))
        place = (self.a, self.b).index(instance)
        for connections in self.switches:
            until(connections[place].closed.is_set)
            connections[place] = connections[place].another()
            self.network.call(connections[place].connect("127.0.0.1", instance.openflow))
            until(lambda: connections[0].masters.role(connections[place]) in (roles.MASTER, roles.SLAVE))  # noqa: B023  # waited for at once

    def is_led_by(self, instance: Instance) -> bool:
        """True where the instance has all switches in sync, as their master."""
        mine = [each[(self.a, self.b).index(instance)] for each in self.switches]
        return all(each.masters.is_master(each) for each in mine) and all_in_sync(instance, len(mine))

    def forget(self) -> None:
        """Count flow-mods from now on."""
        for each in chain(*self.switches):
            each.forget_counts()

    def changes(self) -> list[tuple[int, int, int]]:
        """The switches that were changed since, or where it was tried by one that is not the master: how often."""
        found = [(each.datapath, each.changed, each.refused_as_slave) for each in chain(*self.switches)]
        return [each for each in found if any(each[1:])]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The upgrade's first step is done: of two instances, the one that stands by is of this release."""
    last = last_release.unpacked(tmp_path)
    with tempfile.TemporaryDirectory(prefix="lark-releases-", dir="/tmp") as directory, FakeNetwork() as network:
        server = PostgresServer(Path(directory))
        server.create()
        server.start()
        url = server.new_database()
        a, b = Instance("a", tmp_path, url, last), Instance("b", tmp_path, url, last_release.next_to(last, tmp_path))
        for each in (a, b):
            each.environ |= PATIENT | {"LARK_COUNTER_SECONDS": "0.5", "LARK_USAGE_WRITE_SECONDS": "1"}
            (tmp_path / f"{each.name}.yaml").write_text(POLICY)
        edge, core = Old(1, port_infos(edge_ports(8))), Old(CORE, port_infos(CORE_PORTS))
        made = Site(a, b, url, network, [[each, each.another()] for each in (edge, core)])
        try:
            a.start()
            until(a.is_active)
            assert made.tables() == {last_release.tables(last)}
            b.start()
            until(b.stands_by)
            for each, connections in product((a, b), made.switches):
                until(lambda: listens(each.openflow))  # noqa: B023  # waited for at once
                network.call(connections[(a, b).index(each)].connect("127.0.0.1", each.openflow))
            until(lambda: made.is_led_by(a))
            # Posted at either, each by its own release's code.
            assert made.post(a, 1, rate=RATE) == 201
            assert made.post(b, 2, rate=RATE) == 201
            made.promises_nothing_twice(b)
            yield made
        finally:
            for each in (a, b):
                if each.process is not None and each.process.poll() is None:
                    each.process.kill()
                    each.process.wait()
            server.stop()


def lark(instance: Instance, *command: str) -> subprocess.CompletedProcess[str]:
    """The command ``lark`` of the instance's release, asking that instance."""
    program = ("-m", "lark_controller.cli.main", *command, "--url", instance.url)
    return last_release.run(instance.tree, *program, token=instance.token)


def test_instances_are_upgraded_one_after_the_other(site: Site) -> None:
    a, b = site.a, site.b
    before = site.counted(b)
    # One that stands by changes no tables.
    assert site.tables() == {last_release.tables(a.tree)}
    site.forget()
    assert lark(b, "drain", "a").returncode == 0
    assert a.process is not None
    assert a.process.wait(120) == HANDED_OVER
    until(lambda: site.is_led_by(b))
    assert site.tables() == {last_release.tables(b.tree)}
    before = site.counted(b, before)
    site.promises_nothing_twice(b)
    assert site.changes() == []
    # The other one follows, and has the term again.
    a.tree = b.tree
    a.start()
    until(a.stands_by)
    site.reconnect(a)
    assert lark(a, "drain", "b").returncode == 0
    until(lambda: site.is_led_by(a))
    site.counted(a, before)
    site.promises_nothing_twice(a)
    assert site.changes() == []
    assert site.post(a, 3) == 201


def test_one_of_the_last_release_is_no_successor_of_one_of_this(site: Site, tmp_path: Path) -> None:
    a, b = site.a, site.b
    # What the last release has written of their use is what this one goes on from.
    until(lambda: len(site.asked("SELECT number FROM usage_jobs WHERE readings <> ''")) == 2)
    before = site.counted(b)
    site.forget()
    a.stop(signal.SIGKILL)
    until(lambda: site.is_led_by(b))
    assert site.tables() == {last_release.tables(b.tree)}
    before = site.counted(b, before)
    assert site.changes() == []
    # Started again as it was, the other one stands by and hands requests on.
    a.start()
    until(a.stands_by)
    site.reconnect(a)
    assert site.post(a, 3) == 201
    site.promises_nothing_twice(a)
    before = site.counted(a, before)
    # So do workers that are not upgraded yet.
    (tmp_path / "token").write_text(b.token)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "ads").write_text(OF_A_WORKER)
    urls = f"{a.url},{b.url}"
    done = last_release.run(a.tree, str(SCRIPT), urls, str(tmp_path / "token"), str(tmp_path / "ads"))
    assert done.returncode == 0, done.stderr
    usage = json.loads(done.stdout)["usage"]
    assert (usage["bytes_in"], usage["bytes_out"], usage["transfer_bytes_in"]) == (1000, 3000, 700)
    for each in (a, b):
        refused = lark(each, "drain", "b")
        assert refused.returncode == 1, refused.stdout
        assert "none has said that it knows its tables" in refused.stderr
    # Where it is the only one left it takes over nothing, and its log says why.
    site.forget()
    b.stop(signal.SIGKILL)
    until(lambda: "a newer Lark" in a.log.read_text())
    until(lambda: "a newer Lark" in str(a.ask("/readyz")[1]))
    assert site.post(a, 4) == 503
    assert site.tables() == {last_release.tables(b.tree)}
    b.start()
    until(b.is_active)
    site.reconnect(b)
    until(lambda: site.is_led_by(b))
    site.counted(b, before)
    site.promises_nothing_twice(b)
    assert site.changes() == []
    assert site.post(b, 4) == 201
