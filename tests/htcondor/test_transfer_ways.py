"""Files that a real HTCondor moves by other ways than the usual one are accounted as their job's all the same, and have
its mark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_common.scitags import LABEL_MASK, Scitag
from lark_worker.network.commands import run
from tests.fixtures.service import wait
from tests.htcondor.moving_pool import HTTP, MEGA, URL, RealPool, Way
from tests.htcondor.real_pool import PORT
from tests.worker.pool import a_pool
from tests.worker.test_fireflies import Receiver, receiving
from tests.worker.test_own_flows import labels_at

pytestmark = pytest.mark.ovs

# The output is on its way for longer than it takes until its packets are marked.
SANDBOX, OUTPUT = 12 * MEGA, 30 * MEGA
MARK = Scitag(3, 12)
POLICY = """\
version: 1
networks: {jobs: [10.64.0.0/16, "2001:db8:64::/48"], local: [10.0.0.0/8, "fd00::/8"]}
scitags: {collectors: ["127.0.0.1:PORT"], flows: all, labels: true}
policies:
  - scitags: {experiment: 3, activity: 12}
"""
OVER_IPV6 = f"""\
ENABLE_IPV4 = False
ENABLE_IPV6 = True
COLLECTOR_HOST = [fd00:77::2]:{PORT}
"""
PLAIN = "SEC_DEFAULT_ENCRYPTION = NEVER\nSEC_DEFAULT_INTEGRITY = NEVER\n"
# Whoever connects to the access point asks its broker to be connected to, since its other ports are closed.
BROKERED = "CCB_ADDRESS = $(COLLECTOR_HOST)\n"
SHARED = "USE_SHARED_PORT = True\n"
WAYS = {
    "shared port": Way(of_worker=SHARED, of_access_point=SHARED),
    "CCB to a shared port": Way(of_worker=SHARED, of_access_point=SHARED + BROKERED),
    "CCB": Way(of_access_point=BROKERED),
    "IPv6": Way("fd00:77::1", "fd00:77::2", 64, OVER_IPV6, OVER_IPV6),
    "not encrypted": Way(of_worker=PLAIN, of_access_point=PLAIN),
    "encrypted": Way(
        of_worker="SEC_DEFAULT_ENCRYPTION = REQUIRED\n", of_access_point="SEC_DEFAULT_ENCRYPTION = REQUIRED\n"
    ),
}


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture(params=list(WAYS))
def pool(request: pytest.FixtureRequest, ovs: OpenVSwitch, collector: Receiver) -> Iterator[RealPool]:
    way = WAYS[request.param]
    with temporary_directory() as name, Net() as net:
        folder = Path(name)
        (folder / "lark").mkdir()
        with a_pool(
            folder / "lark", ovs, net, POLICY.replace("PORT", str(collector.port)),
            NETWORK_TYPE="none", COUNTER_SECONDS="0.5", USAGE_INTERVAL="1",
        ) as lark:  # fmt: skip
            made = RealPool(lark, net, folder, way)
            try:
                if request.param == "CCB":
                    close_ports(made)
                made.start()
                yield made
            finally:
                made.close()
        ovs.vsctl("--if-exists", "del-br", lark.bridge)


def close_ports(pool: RealPool) -> None:
    """Let nobody but by the broker's and the web server's port into the access point."""
    rule = f"iifname != lo tcp dport != {{ {PORT}, {HTTP} }} tcp flags & (syn | ack) == syn drop"
    for text in (
        "add table inet closed",
        "add chain inet closed incoming { type filter hook input priority 0; }",
        f"add rule inet closed incoming {rule}",
    ):
        run(["ip", "netns", "exec", pool.far.namespace, "nft", text])


def test_files_are_their_job_s_by_every_way(pool: RealPool, collector: Receiver) -> None:
    access = pool.machines[0]
    capture = labels_at(pool.far)
    address = f"[{pool.way.access_point}]" if ":" in pool.way.access_point else pool.way.access_point
    access.run(f"head -c {SANDBOX} /dev/urandom >/home/alice/sandbox; chown alice /home/alice/sandbox")
    cluster = pool.jobs.submit(
        "alice", f"head -c {OUTPUT} /dev/urandom >result; sleep 2",
        {
            "universe": "vanilla", "executable": "run", "request_memory": "64", "request_disk": "100000",
            "should_transfer_files": "YES", "when_to_transfer_output": "ON_EXIT",
            "output": "out", "error": "err", "log": "log", "transfer_output_files": "result",
            "transfer_input_files": f"sandbox, http://{address}:{HTTP}/data",
        },
    )  # fmt: skip
    pool.jobs.wait(cluster)
    wait(lambda: bool((pool.lark.client.job(f"{cluster}.0")["usage"] or {}).get("final")), limit=60)
    found = pool.lark.client.job(f"{cluster}.0")["usage"]
    assert pool.jobs.attribute(cluster, "ExitCode") == "0"
    assert 0 <= found["transfer_bytes_in"] - SANDBOX - URL < (SANDBOX + URL) // 50, found
    assert 0 <= found["transfer_bytes_out"] - OUTPUT < OUTPUT // 50, found
    assert found["transfer_wan_bytes_in"] == 0, found
    flows = ended(collector)
    assert {each["context"]["experiment-id"] for found in flows for each in found} == {MARK.experiment}
    assert {each["context"]["activity-id"] for found in flows for each in found} == {MARK.activity}
    assert {each["flow-id"]["afi"] for found in flows for each in found} == {"ipv6" if "[" in address else "ipv4"}
    (fetched,) = (found[-1] for found in flows if found[-1]["flow-id"]["dst-port"] == HTTP)
    own = [found[-1] for found in flows if found[-1]["flow-id"]["dst-port"] != HTTP]
    assert 0 <= fetched["usage"]["received"] - URL < URL // 50, fetched
    assert 0 <= max(each["usage"]["received"] for each in own) - SANDBOX < SANDBOX // 50, own
    sent = max(own, key=lambda each: int(each["usage"]["sent"]))
    assert 0 <= sent["usage"]["sent"] - OUTPUT < OUTPUT // 50, sent
    capture.close()
    if "[" in address:
        labels = capture.labels(sent["flow-id"]["src-port"])
        assert MARK.label in {each & LABEL_MASK for each in labels}
        assert len({each & ~LABEL_MASK for each in labels}) == 1
        ports = {each[0] for each in capture.seen if each[2] & LABEL_MASK == MARK.label}
        assert ports <= {found[-1]["flow-id"]["src-port"] for found in flows}


def ended(collector: Receiver) -> list[list[dict[str, Any]]]:
    """The fireflies of each flow, once all that have begun are over."""
    flows: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def over() -> bool:
        flows.clear()
        for each in list(collector.seen):
            flows.setdefault((each["flow-id"]["src-port"], each["flow-id"]["dst-port"]), []).append(each)
        states = [[each["flow-lifecycle"]["state"] for each in found] for found in flows.values()]
        return len(states) >= 3 and all((each[0], each[-1]) == ("start", "end") for each in states)

    wait(over, limit=60)
    return list(flows.values())
