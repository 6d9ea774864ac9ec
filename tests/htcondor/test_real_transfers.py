"""Files that a real HTCondor moves, by its own protocol and by its plugin for URLs, are accounted, limited, blocked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.usage import metering
from tests.fixtures.service import wait
from tests.htcondor.moving_pool import HTTP, LINK, MEGA, URL, USUAL, RealPool
from tests.worker.pool import a_pool

pytestmark = pytest.mark.ovs

# Without it a starter of its own, and of no job, moves such input.
(COMMON,) = re.findall(
    r"(?m)^FORBID_COMMON_FILE_TRANSFER = .*\n",
    (Path(__file__).parents[2] / "etc/condor/51-lark-access-point.conf").read_text(),
)
SANDBOX, OUTPUT = 12 * MEGA, 10 * MEGA
ACCESS_POINT = USUAL.access_point
# Mb/s of the rule.
RATE = 16
# Mb/s that the site has for transfers.
CAPACITY = 80
POLICY = f"""\
version: 1
networks: {{jobs: [10.64.0.0/16, "2001:db8:64::/48"], local: [10.0.0.0/8]}}
policies:
  - transfers: {{when: 'Owner == "mallory"', block: true}}
  - transfers: {{when: 'Owner == "bob"', rate: {RATE}Mbit}}
transfer_capacity: {{access_points: {{ap.test: {CAPACITY}}}, groups: {{users: {CAPACITY}}}}}
groups: {{users: {{when: 'Owner == "bob"'}}}}
"""


@pytest.fixture(scope="module")
def pool(ovs: OpenVSwitch) -> Iterator[RealPool]:
    with temporary_directory() as name, Net() as net:
        folder = Path(name)
        (folder / "lark").mkdir()
        with a_pool(
            folder / "lark", ovs, net, POLICY,
            NETWORK_TYPE="none", COUNTER_SECONDS="0.5", USAGE_INTERVAL="1",
        ) as lark:  # fmt: skip
            made = RealPool(lark, net, folder, USUAL._replace(of_access_point=COMMON))
            try:
                made.start()
                yield made
            finally:
                made.close()
        ovs.vsctl("--if-exists", "del-br", lark.bridge)


@pytest.fixture(scope="module")
def moved(pool: RealPool) -> dict[str, dict[str, Any]]:
    """The bytes moved for a job of alice's, which is under no rule, and then for one of bob's, which is."""
    found = {}
    for user in ("alice", "bob"):
        cluster = submit(pool, user)
        pool.jobs.wait(cluster)
        names = ("LarkTransferBytesIn", "LarkTransferBytesOut", "LarkTransferWanBytesIn", "LarkTransferSeconds",
                 "LarkTransferRateIn", "ExitCode")  # fmt: skip
        ad = {name: pool.jobs.attribute(cluster, name) for name in names}
        found[user] = {"ad": ad, **used(pool, cluster)}
    return found


def headroom(pool: RealPool, name: str) -> float | None:
    """An attribute of the slots' ads, as the pool has it."""
    found = pool.machines[0].run(f"condor_status -limit 1 -af {name}").split()
    return float(found[0]) if found and found[0] != "undefined" else None


def test_what_is_left_for_transfers_is_in_the_pool_as_long_as_the_policy_has_a_capacity(
    pool: RealPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "HEADROOM_SECONDS", 1.0)
    # The thread of before may have asked a moment ago.
    pool.lark.stop_service()
    pool.lark.start_service()
    names = ("TransferHeadroomAt_ap_test", "TransferHeadroom_users")
    wait(lambda: [headroom(pool, each) for each in names] == [CAPACITY, CAPACITY], limit=120)
    pool.lark.client.put_policy(POLICY.replace(f"ap.test: {CAPACITY}", "ap.test: 7"))
    wait(lambda: headroom(pool, names[0]) == 7, limit=120)
    # Jobs wait for it: another one that is submitted later runs before this.
    try:
        waits = empty(pool, {"requirements": f"TARGET.{names[0]} >= 50 && TARGET.{names[1]} >= 50"})
        pool.jobs.wait(empty(pool, {"requirements": f"TARGET.{names[0]} < 50"}))
        assert pool.jobs.state(waits).split()[0] == "1"
    finally:
        pool.lark.client.put_policy(POLICY)
    pool.jobs.wait(waits)


def empty(pool: RealPool, more: dict[str, str]) -> int:
    """Submit a job that does nothing; its cluster."""
    lines = {"universe": "vanilla", "executable": "run", "request_memory": "64", "request_disk": "1000"}
    return pool.jobs.submit("alice", "true", {**lines, "should_transfer_files": "YES", **more})


def submit(pool: RealPool, user: str, sandbox: int = SANDBOX) -> int:
    """Submit a job that has a sandbox and a URL moved in, and a file out; its cluster."""
    access = pool.machines[0]
    access.run(f"head -c {sandbox} /dev/urandom >/home/{user}/sandbox; chown {user} /home/{user}/sandbox")
    return pool.jobs.submit(
        user,
        # What is in the ad was moved until the program's end; the service says it each second.
        f"[ $(cat sandbox data | wc -c) = {sandbox + URL} ] || exit 1; head -c {OUTPUT} /dev/urandom >result; sleep 4",
        {
            "universe": "vanilla", "executable": "run", "request_memory": "64", "request_disk": "100000",
            "should_transfer_files": "YES", "when_to_transfer_output": "ON_EXIT",
            "output": "out", "error": "err", "log": "log", "transfer_output_files": "result",
            "transfer_input_files": f"sandbox, http://{ACCESS_POINT}:{HTTP}/data",
        },
    )  # fmt: skip


def used(pool: RealPool, cluster: int) -> dict[str, Any]:
    """A job's use, once its last counts are in."""
    found: dict[str, Any] = {}

    def is_final() -> bool:
        nonlocal found
        found = pool.lark.client.job(f"{cluster}.0")["usage"] or {}
        return bool(found.get("final"))

    wait(is_final, limit=60)
    return found


def test_a_checkpoint_which_a_starter_moves_itself_is_its_job_s(pool: RealPool) -> None:
    size = 3 * OUTPUT
    cluster = pool.jobs.submit(
        "alice", f"[ -e state ] && exit 0; head -c {size} /dev/urandom >state; exit 85",
        {
            "universe": "vanilla", "executable": "run", "request_memory": "64", "request_disk": "200000",
            "should_transfer_files": "YES", "when_to_transfer_output": "ON_EXIT", "checkpoint_exit_code": "85",
            "output": "out", "error": "err", "log": "log", "transfer_checkpoint_files": "state",
            "transfer_output_files": '""',
        },
    )  # fmt: skip
    pool.jobs.wait(cluster)
    found = used(pool, cluster)
    assert pool.jobs.attribute(cluster, "NumJobStarts ExitCode") == "1 0"
    assert 0 <= found["transfer_bytes_out"] - size < size // 50, found
    assert found["transfer_bytes_in"] < OUTPUT // 50, found


def test_input_that_jobs_have_in_common_is_each_job_s_own_with_the_shipped_configuration(pool: RealPool) -> None:
    size = 3 * OUTPUT
    access = pool.machines[0]
    access.run(f"head -c {size} /dev/urandom >/home/alice/common; chown alice /home/alice/common")
    cluster = pool.jobs.submit(
        "alice", f"[ $(cat common data | wc -c) = {size + URL} ]",
        {
            "universe": "vanilla", "executable": "run", "request_memory": "64", "request_disk": "200000",
            "should_transfer_files": "YES", "output": "out", "error": "err", "log": "log",
            "+CommonInputFiles": f'"/home/alice/common,http://{ACCESS_POINT}:{HTTP}/data"',
        },
    )  # fmt: skip
    pool.jobs.wait(cluster)
    found = used(pool, cluster)
    assert pool.jobs.attribute(cluster, "NumJobStarts ExitCode") == "1 0"
    assert 0 <= found["transfer_bytes_in"] - size - URL < (size + URL) // 50, found


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_both_ways_of_moving_files_are_accounted_in_lark_and_in_the_job_s_ad(
    moved: dict[str, dict[str, Any]], user: str
) -> None:
    found = moved[user]
    assert found["ad"]["ExitCode"] == "0", found
    # Payload, the words of both protocols, and encryption: less than a fiftieth.
    assert 0 <= found["transfer_bytes_in"] - SANDBOX - URL < (SANDBOX + URL) // 50, found
    assert 0 <= found["transfer_bytes_out"] - OUTPUT < OUTPUT // 50, found
    # The access point and the server are of the site.
    assert found["transfer_wan_bytes_in"] == 0, found
    assert 0 <= found["transfer_bytes_in"] - int(found["ad"]["LarkTransferBytesIn"]) < 100_000, found
    assert 0 <= int(found["ad"]["LarkTransferBytesOut"]) <= found["transfer_bytes_out"], found
    assert found["ad"]["LarkTransferWanBytesIn"] == "0", found
    seconds = float(found["ad"]["LarkTransferSeconds"])
    assert 0 < seconds <= found["transfer_seconds"], found
    rate = 8 * int(found["ad"]["LarkTransferBytesIn"]) / MEGA / seconds
    assert float(found["ad"]["LarkTransferRateIn"]) == pytest.approx(rate, rel=0.001), found


def test_a_rule_s_rate_holds_beside_a_job_that_has_none(moved: dict[str, dict[str, Any]]) -> None:
    print({user: {name: moved[user][name] for name in moved[user] if name.startswith("transfer")} for user in moved})
    free, limited = (moved[user]["transfer_seconds"] for user in ("alice", "bob"))
    # One bucket each in and out, of a second's rate and 512 KiB, and half a second until each connection is known, on a
    # link of LINK.
    beyond = 2 * (RATE + 4.2 + 0.5 * LINK)
    least = 8 * (SANDBOX + URL + OUTPUT) / MEGA
    assert limited >= (least - beyond) / RATE, moved
    assert free < limited, moved


def test_nothing_is_moved_for_a_job_that_is_blocked(pool: RealPool) -> None:
    # More than passes until the worker knows the connection, on a machine that does something else as well.
    cluster = submit(pool, "mallory", 4 * SANDBOX)
    try:
        wait(lambda: shown(pool, cluster) == ("blocked", True), limit=60)
        # HTCondor begins again and again with the input (event 40), and the program never runs (event 1).
        wait(lambda: log(pool).count("Started transferring input files") >= 3, limit=120)
        assert re.search("^001", log(pool), re.MULTILINE) is None, log(pool)
    finally:
        pool.machines[0].run(f"condor_rm {cluster}")


def shown(pool: RealPool, cluster: int) -> tuple[str, bool]:
    """The terms of a live job's transfers, and whether its worker has them in place."""
    for each in pool.lark.client.jobs(owner="mallory", state="live"):
        found = pool.lark.client.job(each["id"])
        if f"#{cluster}.0#" in each["global_job_id"]:
            return found["decision"]["transfers"]["words"], found["transfers"]["enforced"]
    return "", False


def log(pool: RealPool) -> str:
    """The event log of the blocked job."""
    return pool.machines[0].run("cat /home/mallory/log", check=False)


def test_what_is_left_falls_while_files_are_moved_and_is_all_again_after(
    pool: RealPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "HEADROOM_SECONDS", 1.0)
    names = ("TransferHeadroomAt_ap_test", "TransferHeadroom_users")
    left: dict[str, list[float]] = {name: [] for name in names}

    def falls() -> bool:
        for name in names:
            found = headroom(pool, name)
            left[name] += [] if found is None else [found]
        return all(min(each, default=CAPACITY) < CAPACITY for each in left.values())

    # The test before may have left its own.
    wait(lambda: [headroom(pool, name) for name in names] == [CAPACITY, CAPACITY], limit=120)
    # Under the rule this takes half a minute.
    cluster = submit(pool, "bob", 4 * SANDBOX)
    try:
        wait(falls, limit=120)
    finally:
        pool.machines[0].run(f"condor_rm {cluster}")
    wait(lambda: [headroom(pool, name) for name in names] == [CAPACITY, CAPACITY], limit=120)
