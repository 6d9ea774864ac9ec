"""What is shown of jobs' traffic, on real Open vSwitch: rates while packets pass, and drops with their rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.fixtures.service import WORKER1, Lark, Site, wait

pytestmark = pytest.mark.ovs

RULES = ("slice: {by: Owner}", "wan: {when: 'Owner == \"bob\"', action: drop}", "block: {when: 'Owner == \"mallory\"'}")


@pytest.fixture
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        site = Site(ovs, net, {"a": WORKER1, "b": WORKER1, "m": WORKER1})
        yield site
        for bridge in site.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


@pytest.fixture
def lark(site: Site) -> Iterator[Lark]:
    with temporary_directory() as directory:
        lark = Lark(Path(directory), site.policy(*RULES), changed=None, LARK_COUNTER_SECONDS="0.3")
        lark.start()
        site.connect(lark)
        yield lark
        lark.stop()


def test_the_wans_part_of_a_rate_is_never_more_than_the_whole(site: Site, lark: Lark) -> None:
    """Open vSwitch's flows follow its ports twice a second; counters are read three times a second here."""
    job = site.run(lark, "a", "alice")
    flood = site.net.start(site["a"], ["ping", "-q", "-i", "0.002", "-s", "1400", "192.0.2.1"])
    looks, wan = 0, 0.0
    try:
        until = time.monotonic() + 8
        while time.monotonic() < until:
            for by in ("group", "user", "host", "job"):
                for each in lark.get(f"/v1/rates?by={by}")["rates"]:
                    rate = each["rate"]
                    assert rate["wan_outward"] <= rate["outward"], (by, rate)
                    assert rate["wan_inward"] <= rate["inward"], (by, rate)
                    looks, wan = looks + 1, max(wan, rate["wan_outward"])
            used = lark.get(f"/v1/jobs/{job['id']}")["usage"]
            assert used["wan_bytes_out"] <= used["bytes_out"]
            time.sleep(0.1)
    finally:
        flood.terminate()
        flood.wait()
    assert looks > 50
    assert wan > 0.5

    def all_of_it() -> bool:
        """Nothing of the WAN's part stays behind: nearly all was to the WAN."""
        used = lark.get(f"/v1/jobs/{job['id']}")["usage"]
        return bool(0.95 * used["bytes_out"] < used["wan_bytes_out"] <= used["bytes_out"])

    wait(all_of_it)
