"""A real collector and a real switch: a lie is quarantined, the pool's silence ends nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_common.errors import PoolError
from lark_controller.htcondor.read import read_pool
from tests.fixtures.condor import Collector, a_collector
from tests.fixtures.service import (
    WORKER1,
    Lark,
    Site,
    wait,
)

pytestmark = pytest.mark.ovs


@pytest.fixture
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        site = Site(ovs, net, {"a": WORKER1, "b": WORKER1})
        yield site
        for bridge in site.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_directory() as made:
        yield Path(made)


@pytest.fixture
def collector(folder: Path) -> Iterator[Collector]:
    (folder / "collector").mkdir()
    with a_collector(folder / "collector") as collector:
        yield collector


@contextmanager
def running(site: Site, folder: Path, collector: Collector, lease: float) -> Iterator[Lark]:
    (folder / "lark").mkdir()
    pool = {"collector_interval": 1.0, "collector_timeout": 2.0, "collector_margin": 1.0, "collector_ad_seconds": 1.0}
    lark = Lark(
        folder / "lark", site.policy(), changed={**pool, "lease_seconds": lease}, LARK_COLLECTOR=collector.address
    )
    lark.start()
    site.connect(lark)
    yield lark
    lark.stop()


@pytest.fixture
def lark(site: Site, folder: Path, collector: Collector) -> Iterator[Lark]:
    with running(site, folder, collector, 900.0) as lark:
        yield lark


@pytest.fixture
def brief(site: Site, folder: Path, collector: Collector) -> Iterator[Lark]:
    """A controller whose leases are five seconds; nobody renews them."""
    with running(site, folder, collector, 5.0) as lark:
        yield lark


def pool_says(collector: Collector, job: dict[str, Any], **changes: object) -> None:
    values = {"GlobalJobId": job["global_job_id"], "Owner": job["owner"], "JobCurrentStartDate": job["started"]}
    collector.advertise(job["slot"], {**values, **changes})


def state(lark: Lark, job: dict[str, Any]) -> str:
    return str(lark.get(f"/v1/jobs/{job['id']}")["state"])


def readings(lark: Lark) -> float:
    return float(lark.service.metrics.pool_readings.labels("read")._value.get())


def failures(lark: Lark) -> float:
    return float(lark.service.metrics.pool_readings.labels("failed")._value.get())


def test_a_forged_owner_is_quarantined_until_the_pool_agrees_or_an_operator_lifts_it(
    site: Site, lark: Lark, collector: Collector
) -> None:
    other = site.run(lark, "b", "alice")
    forged = site.run(lark, "a", "alice")
    pool_says(collector, other)
    before = readings(lark)
    wait(lambda: readings(lark) >= before + 2)
    assert site.matrix("a", "b") == {"a>b", "b>a"}
    pool_says(collector, forged, Owner="mallory")
    wait(lambda: state(lark, forged) == "quarantined")
    reason = lark.get(f"/v1/jobs/{forged['id']}")["reason"]
    assert "is mallory's, it is registered as alice's" in reason
    wait(lambda: site.matrix("a", "b") == set())
    line = lark.get(f"/v1/audit?subject={forged['id']}")["entries"][0]
    assert (line["actor"], line["action"], line["detail"]) == ("pool", "quarantine", reason)
    told = lark.get(f"/v1/explain?src={forged['id']}&dst={other['id']}")
    assert told["verdict"] == "dropped"
    assert any(step["where"] == "pool" and reason in step["text"] for step in told["steps"])
    assert state(lark, other) == "enforced"
    # Posting again, or another start of the controller, changes nothing.
    assert lark.post(site.ads("a", "alice", number=forged["cluster"])).body["state"] == "quarantined"
    lark.stop()
    lark.start()
    lark.wait_in_sync(*site.bridges)
    assert state(lark, forged) == "quarantined"
    assert site.matrix("a", "b") == set()
    pool_says(collector, forged)
    wait(lambda: state(lark, forged) == "enforced")
    wait(lambda: site.matrix("a", "b") == {"a>b", "b>a"})
    pool_says(collector, forged, Owner="mallory")
    wait(lambda: state(lark, forged) == "quarantined")
    lifted = lark.request("DELETE", f"/v1/jobs/{forged['id']}/quarantine")
    assert (lifted.status, lifted.body["vouched"]) == (200, True)
    wait(lambda: state(lark, forged) == "enforced")
    before = readings(lark)
    wait(lambda: readings(lark) >= before + 3)
    assert state(lark, forged) == "enforced"
    actions = [line["action"] for line in lark.get(f"/v1/audit?subject={forged['id']}")["entries"]]
    assert actions[:4] == ["lift", "quarantine", "lift", "quarantine"]


def test_a_job_on_a_slot_that_is_unclaimed_is_quarantined(site: Site, lark: Lark, collector: Collector) -> None:
    ghost = site.run(lark, "a", "alice")

    def says_unclaimed() -> bool:
        collector.advertise(ghost["slot"])
        return state(lark, ghost) == "quarantined"

    wait(says_unclaimed)
    assert "runs no job" in lark.get(f"/v1/jobs/{ghost['id']}")["reason"]


def test_leases_end_nothing_that_the_pool_confirms_or_while_it_is_away(
    site: Site, brief: Lark, collector: Collector
) -> None:
    job = site.run(brief, "a", "alice")
    # Before its lease ends, whatever the other's start takes.
    pool_says(collector, job)
    over = site.run(brief, "b", "bob")

    def heard_of() -> bool:
        pool_says(collector, job)
        return state(brief, over) == "ended"

    wait(heard_of, 60)
    before = readings(brief)
    wait(lambda: readings(brief) > before)
    assert state(brief, job) == "enforced"
    collector.kill()
    before = failures(brief)
    wait(lambda: failures(brief) >= before + 8, 60)
    assert state(brief, job) == "enforced"
    assert brief.service.metrics.leases_kept._value.get() >= 1
    collector.start()

    def heard_of_another() -> bool:
        collector.advertise(job["slot"])
        return state(brief, job) == "ended"

    wait(heard_of_another, 30)


def test_a_collector_that_hangs_holds_nothing_up(site: Site, lark: Lark, collector: Collector) -> None:
    collector.pause()
    try:
        before = failures(lark)
        wait(lambda: failures(lark) > before)
        began = time.monotonic()
        with pytest.raises(PoolError, match="has not answered within"):
            read_pool(collector.address, 0.5)
        # A bound for a busy machine: the collector stands still for ever.
        assert time.monotonic() - began < 60
        assert site.run(lark, "a", "alice")["state"] == "enforced"
    finally:
        collector.resume()
    before = readings(lark)
    wait(lambda: readings(lark) > before)


def test_a_collector_that_is_none_is_told_in_a_sentence() -> None:
    with pytest.raises(PoolError, match="cannot be asked"):
        read_pool("127.0.0.1:1", 10)
