"""The usage that is shown of jobs, on real Open vSwitch: rates while packets pass, and drops with their rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_controller.cli import main as cli
from tests.fixtures.service import WORKER1, Json, Lark, Site, wait

pytestmark = pytest.mark.ovs

# Packets a second that a test sends.
SENT = 50
RULES = ("slice: {by: Owner}", "wan: {when: 'Owner == \"bob\"', action: drop}", "block: {when: 'Owner == \"mallory\"'}")


@pytest.fixture
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        site = Site(ovs, net, {"a": WORKER1, "b": WORKER1, "m": WORKER1})
        yield site
        for bridge in site.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


@pytest.fixture
def seconds() -> str:
    """The seconds between two readings of counters, less than between two updates of Open vSwitch's counters."""
    return "0.3"


@pytest.fixture
def lark(site: Site, seconds: str) -> Iterator[Lark]:
    with temporary_directory() as directory:
        lark = Lark(Path(directory), site.policy(*RULES), changed=None, LARK_COUNTER_SECONDS=seconds)
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
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 8 or (looks <= 50 and passed < 60):
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


@contextmanager
def sending(site: Site, *pairs: tuple[str, str]) -> Iterator[None]:
    """Hosts send :data:`SENT` packets a second to addresses."""
    some = [site.net.start(site[name], ["ping", "-q", "-i", str(1 / SENT), address]) for name, address in pairs]
    try:
        yield
    finally:
        for each in some:
            each.terminate()
            each.wait()


def drops(lark: Lark) -> dict[tuple[str, str], Json]:
    """The drops of the moment, by owner and kind; less is what machines send by themselves."""
    found = lark.get("/v1/drops")["drops"]
    return {(each["owner"], each["kind"]): each for each in found if each["packets_per_second"] > SENT / 5}


# Each stretch between two readings has at least three of Open vSwitch's updates, which come twice a second.
@pytest.mark.parametrize("seconds", ["2"])
def test_what_is_dropped_now_is_shown_with_its_rule_and_speed(
    site: Site, lark: Lark, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.run(lark, "a", "alice")
    bob = site.run(lark, "b", "bob")
    mallory = site.run(lark, "m", "mallory")
    line = {word: number for number, text in enumerate(lark.policy_file.read_text().splitlines(), 1)
            for word in ("slice", "wan", "block") if f"- {word}:" in text}  # fmt: skip
    assert lark.get("/v1/overview")["jobs"]["isolated"] == 1
    listed = {each["owner"]: each["isolated"] for each in lark.get("/v1/jobs")["jobs"]}
    assert listed == {"alice": False, "bob": False, "mallory": True}
    # Static entries: what a host asks its neighbours must not be what is dropped.
    for name, other in (("b", "a"), ("m", "a")):
        site.net.exec(
            site[name], ["ip", "neigh", "replace", site[other].ipv4, "lladdr", site[other].mac, "dev", "eth0"]
        )
    site.net.exec(site["m"], ["ip", "neigh", "replace", site["gw"].ipv4, "lladdr", site["gw"].mac, "dev", "eth0"])
    with sending(site, ("b", "192.0.2.1"), ("b", site["a"].ipv4), ("m", "192.0.2.1"), ("a", "192.0.2.2")):
        wanted = {("bob", "wan"), ("bob", "slice"), ("mallory", "block")}
        found: dict[tuple[str, str], Json] = {}

        def at_speed() -> bool:
            """All of it is shown; in the stretch in which the packets began the speed is less."""
            found.clear()
            found.update(drops(lark))
            speeds = [each["packets_per_second"] for each in found.values()]
            return set(found) == wanted and all(SENT / 2 < speed < 2 * SENT for speed in speeds)

        wait(at_speed, 60)
        assert {each["direction"] for each in found.values()} == {"out"}
        wan, sliced, block = (found[each] for each in (("bob", "wan"), ("bob", "slice"), ("mallory", "block")))
        assert (wan["job"], wan["name"], wan["destination"]) == (bob["id"], f"{bob['cluster']}.0", "the WAN")
        assert (wan["line"], sliced["line"], block["line"]) == (line["wan"], line["slice"], line["block"])
        assert wan["rule"] == f'wan drop when Owner == "bob" (policy line {line["wan"]})'
        assert sliced["destination"].startswith("jobs outside the slice")
        assert (block["job"], block["destination"], block["estimated"]) == (mallory["id"], "anyone", False)
        whole = lark.get("/v1/overview")["drops"]
        assert whole["jobs"] >= 2
        assert whole["packets_per_second"] > SENT
        monkeypatch.setenv("LARK_URL", f"http://{lark.service.server.addresses[0]}")
        monkeypatch.setenv("LARK_TOKEN", lark.token)
        assert cli.main(["drops"]) == cli.OK
        assert f"job {bob['cluster']}.0 of bob" in capsys.readouterr().out
        assert cli.main(["jobs"]) == cli.OK
        assert "blocked" in next(text for text in capsys.readouterr().out.splitlines() if "mallory" in text)
    wait(lambda: not drops(lark))
    assert job["id"] not in {each["job"] for each in lark.get("/v1/drops")["drops"]}
