"""The policy's rules of transfers, from the file to the kernel and back: what a worker has in place is shown."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_controller.policies.file import load
from lark_worker.errors import NetworkError
from lark_worker.transfers import enforcement, reports
from tests.fixtures.service import wait
from tests.worker.pool import Pool, a_pool
from tests.worker.test_transfers import about, client, moved, serving

RULES = """\
version: 1
networks: {jobs: [10.64.0.0/16, "2001:db8:64::/48"]}
policies:
  - transfers: {when: 'Owner == "mallory"', block: true}
  - transfers: {when: 'Owner == "alice"', rate: 100Mbit, group: bulk}
groups:
  default: {dscp: 7}
  bulk: {dscp: 9}
"""


@pytest.fixture
def ruled(ovs: OpenVSwitch, net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(reports, "AGAIN_SECONDS", 1.0)
    with a_pool(tmp_path, ovs, net, RULES, COUNTER_SECONDS="0.2") as made:
        yield made


def table(pool: Pool) -> str:
    command = ["nft", "list", "table", "inet", f"{pool.prefix}_transfers"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def shown(pool: Pool, job_id: str) -> tuple[str, bool | None, str]:
    found = pool.client.job(job_id)
    terms, state = found["decision"]["transfers"], found["transfers"]
    if terms is None:
        assert state is None
        return "", None, ""
    return terms["words"], state["enforced"], state["reason"]


@pytest.mark.ovs
@pytest.mark.parametrize("network", ["ovs_bridge", "none"])
def test_a_rule_is_in_the_kernel_before_it_is_claimed_and_follows_the_policy(ruled: Pool, network: str) -> None:
    pool = ruled
    starter, other = (
        pool.starter(number, owner, f'NetworkType = "{network}"\n') for number, owner in ((1, "alice"), (2, "bob"))
    )
    with serving() as server:
        starter.run(f"( {client(pool, server, 0)}; true ) & copy=$!")
        for number, (each, owner) in enumerate(((starter, "alice"), (other, "bob")), 1):
            pool.hook(each, "start", owner, number)
        assert pool.worker is not None
        one, two = (record.id for record in pool.worker.records())
        wait(lambda: shown(pool, one) == ("at most 100 Mb/s, group bulk", True, ""))
        assert shown(pool, two) == ("", None, "")
        wait(lambda: table(pool).count("goto") == 2)
        listed = table(pool)
        assert "limit rate over 12500000 bytes/second" in listed
        assert listed.count("dscp set 0x09") == 2
        # Another policy reaches a job that runs; until the worker has it in place, nothing is claimed.
        changed = RULES.replace("rate: 100Mbit, group: bulk", "rate: 8Mbit")
        pool.client.put_policy(changed)
        wait(lambda: shown(pool, one) == ("at most 8 Mb/s, group default", True, ""))
        listed = table(pool)
        assert "limit rate over 1000000 bytes/second" in listed
        assert listed.count("dscp set 0x07") == 2
        server.release.set()
        starter.run("wait $copy")
        wait(lambda: "goto" not in table(pool))
    starter.kill()
    other.kill()
    wait(lambda: not pool.worker or not pool.worker.records())
    wait(lambda: not table(pool))


@pytest.mark.ovs
def test_a_wan_port_is_a_mark_of_its_own_in_the_kernel(ruled: Pool) -> None:
    pool = ruled
    core = '{datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}}'
    text = RULES.replace("networks: {", "networks: {local: [10.0.0.0/8], ").replace("group: bulk", "port: wan")
    text += f"switches: {{core1: {core}}}\n"
    pool.client.put_policy(text)
    mark = next(each.dscp for each in load(text).transfer_marks if each.group == "default")
    starter = pool.starter(1, "alice", 'NetworkType = "none"\n')
    with serving() as server:
        starter.run(f"( {client(pool, server, 0)}; true ) & copy=$!")
        pool.hook(starter, "start", "alice", 1)
        assert pool.worker is not None
        (record,) = pool.worker.records()
        wait(lambda: shown(pool, record.id) == ("at most 100 Mb/s, group default, WAN port wan", True, ""))
        wait(lambda: table(pool).count("goto") == 2)
        assert table(pool).count(f"dscp set {mark:#04x}") == 2
        server.release.set()
        starter.run("wait $copy")
    starter.kill()
    wait(lambda: not pool.worker or not pool.worker.records())


@pytest.mark.ovs
def test_without_the_controller_known_rules_stay_and_what_begins_has_none_and_is_counted(ruled: Pool) -> None:
    pool = ruled
    starter = pool.starter(1, "alice", 'NetworkType = "none"\n')
    with serving() as server:
        starter.run(f"( {client(pool, server, 0)}; true ) & copy=$!")
        pool.hook(starter, "start", "alice", 1)
        assert pool.worker is not None
        worker = pool.worker
        wait(lambda: table(pool).count("goto") == 2)
        pool.stop_controller()
        # Another connection of the job that is known.
        starter.run(f"( {client(pool, server, 0)}; true ) & other=$!")
        wait(lambda: table(pool).count("goto") == 4)
        # The input of a job that is registered later.
        later = pool.starter(2, "alice", 'NetworkType = "none"\n')
        later.run(f"( {client(pool, server, 0)}; true ) & copy=$!")
        wait(lambda: worker.transfers.followed == 3)
        assert table(pool).count("goto") == 4
        server.release.set()
        starter.run("wait $copy $other")
        later.run("wait $copy")
    pool.start_controller()
    wait(lambda: "enforced" in pool.hook(later, "start", "alice", 2))
    one, two = sorted(worker.records(), key=lambda record: record.slot)
    wait(lambda: about(moved(pool, one.id)[0], 2_000_000) and about(moved(pool, two.id)[0], 1_000_000))
    starter.kill()
    later.kill()
    wait(lambda: not pool.worker or not pool.worker.records())


@pytest.mark.ovs
def test_a_kernel_without_the_means_makes_the_rule_pending_with_the_reason(
    ruled: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ruled
    monkeypatch.setattr(enforcement, "AGAIN_SECONDS", 0.1)

    def refuse(*_: object) -> str:
        raise NetworkError("nft -f -: Operation not supported")

    with monkeypatch.context() as without:
        without.setattr(enforcement, "run", refuse)
        starter = pool.starter(1, "mallory", 'NetworkType = "none"\n')
        pool.hook(starter, "start", "mallory", 1)
        assert pool.worker is not None
        (record,) = pool.worker.records()
        wait(lambda: "Operation not supported" in shown(pool, record.id)[2])
        # The job itself is not held up by it.
        assert pool.client.job(record.id)["state"] == "enforced"
        assert shown(pool, record.id)[:2] == ("blocked", False)
    wait(lambda: shown(pool, record.id) == ("blocked", True, ""))
    # The controller starts again, and believes nobody's word but the worker's.
    pool.stop_controller()
    pool.start_controller()
    wait(lambda: shown(pool, record.id) == ("blocked", True, ""), limit=30)
    stored = json.loads((pool.settings.state_dir / "transfers").read_text())
    assert [each[2] for each in stored["treatments"]] == [{"rate": None, "dscp": 7, "block": True, "shared": []}]
    starter.kill()
    wait(lambda: not pool.worker or not pool.worker.records())
