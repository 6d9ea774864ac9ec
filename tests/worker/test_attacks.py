"""Attempts of a job's user: every one is made by an ordinary user, with everything that the hook can do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lark_worker.hook_socket import CONNECTIONS_PER_JOB
from tests.fixtures.peak_memory import forget_peak, peak
from tests.worker.pool import NOBODY, Pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs


def test_another_owner_or_group_is_refused(pool: Pool) -> None:
    starter = pool.starter(1, "alice", group="group_cms")
    for more in (
        'Owner = "bob"\n',
        'owner = strcat("bo", "b")\n',
        'AcctGroup = "group_atlas"\n',
        'AcctGroupUser = "bob"\n',
        'GlobalJobId = "submit#9.0#1"\n',
        "ClusterId = 77\n",
    ):
        said = pool.hook(starter, "start", "alice", 1, more)
        assert value(said, "HookStatusCode") == "10", more
        assert "the startd" in said, more
    assert list(pool.client.jobs(state="any")) == []
    assert pool.leftovers() == []
    eventually(lambda: len(_forgeries(pool)) == 6)
    assert any('Owner: the ad has "bob", the startd "alice"' in detail for detail in _forgeries(pool))


def test_a_forged_ad_of_a_registered_job_is_refused_and_changes_nothing(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    first = pool.hook(starter, "start", "alice", 1)
    said = pool.hook(starter, "start", "bob", 1)
    assert 'the ad has "bob", the startd "alice"' in value(said, "HookStatusMessage").replace("'", '"')
    assert pool.client.job(value(first, "LarkJobId"))["owner"] == "alice"
    assert pool.inside(starter, "true")[0] == 0
    eventually(lambda: len(_forgeries(pool)) == 1)
    assert pool.hook(starter, "start", "alice", 1) == first


def _forgeries(pool: Pool) -> list[str]:
    return [entry["detail"] for entry in pool.client.audit() if entry["action"] == "forged ad"]


def test_what_is_not_compared_is_not_believed(pool: Pool) -> None:
    starter = pool.starter(1, "alice", group="group_cms")
    said = pool.hook(
        starter, "start", "alice", 1,
        'User = "root@pool"\nJobPrio = 99\nAccountingGroup = "group_atlas.bob"\n'
        'RemoteHost = "slot9@other"\nRequestBandwidth = 5\n',
    )  # fmt: skip
    job = pool.client.job(value(said, "LarkJobId"))
    assert (job["owner"], job["user"], job["group"], job["slot"]) == ("alice", "alice", "group_cms", "slot1_1@worker1")
    assert job["bandwidth"] == 5
    assert "JobPrio" not in job["job_ad"]


def test_a_machine_ad_of_the_users_own_counts_for_nothing(pool: Pool) -> None:
    victim, thief = pool.starter(1, "alice"), pool.starter(2, "mallory2")
    wanted = value(pool.hook(victim, "start", "alice", 1), "LarkInnerAddressIPv4")
    forged = thief.scratch / "forged"
    forged.write_text(
        'Owner = "mallory2"\nGlobalJobId = "submit#2.0#1"\n------\nName = "slot1_1@worker1"\nMachine = "worker1"\n'
        f'LarkAddressType = "static"\nLarkInnerAddressIPv4 = "{wanted}"\nLarkExternalInterface = "br0"\n'
    )
    _, said = thief.as_user(
        f"curl -s --unix-socket {pool.socket} -H 'Content-Type: text/plain' --data-binary @{forged} http://localhost/v1/jobs?wait=5"
    )
    assert value(said, "LarkInnerAddressIPv4") != wanted
    assert pool.client.job_at(wanted)["owner"] == "alice"
    # An address that is put on nevertheless passes nothing.
    pool.inside(thief, "true")
    assert pool.inside(thief, f"ip address add {wanted}/16 dev eth0")[0] != 0


def test_another_job_can_be_neither_ended_nor_renewed(pool: Pool) -> None:
    victim, thief = pool.starter(1, "alice"), pool.starter(2, "mallory2")
    job = value(pool.hook(victim, "start", "alice", 1), "LarkJobId")
    pool.hook(thief, "start", "mallory2", 2)
    for method, path in (("DELETE", f"/v1/jobs/{job}"), ("POST", f"/v1/jobs/{job}/renew")):
        _, said = thief.as_user(f"curl -s --unix-socket {pool.socket} -X {method} http://localhost{path}")
        assert json.loads(said)["status"] == 404
    assert pool.client.job(job)["state"] == "enforced"


def test_who_is_in_no_job_gets_nothing(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    ask = ["curl", "-s", "--unix-socket", str(pool.socket)]
    for url in (
        ["-d", "x", "http://localhost/v1/jobs"],
        ["http://localhost/v1/namespace"],
        ["http://localhost/v1/jobs"],
    ):
        said = subprocess.run([*user, *ask, *url], capture_output=True, text=True, check=True).stdout
        assert json.loads(said)["status"] == 403
    # The programs themselves are there for everybody; they are no starter and no startd in a user's hands.
    pretend = (
        f"{pool.folder}/condor_starter -c 'curl -s --unix-socket {pool.socket} -d x http://localhost/v1/jobs; true'"
    )
    said = subprocess.run(
        [*user, str(pool.folder / "condor_startd"), "-c", f"{pretend}; true"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(said)["status"] == 403


def test_the_namespace_is_told_to_root_alone_and_only_ones_own_is_entered(pool: Pool) -> None:
    victim, thief = pool.starter(1, "alice"), pool.starter(2, "mallory2")
    lines = pool.hook(victim, "start", "alice", 1)
    _, said = victim.as_user(f"curl -s --unix-socket {pool.socket} http://localhost/v1/namespace")
    assert json.loads(said)["status"] == 403
    namespace = f"{pool.prefix}-{value(lines, 'LarkJobId')}"
    assert thief.as_user(f"nsenter --net=/run/netns/{namespace} true")[0] != 0
    # A job that is not registered enters nothing, whatever it names.
    file = thief.scratch / "environment"
    file.write_bytes(b"")
    status, said = thief.run(
        f"SUDO_UID={NOBODY} SUDO_GID={NOBODY} {pool.enter} {file} {namespace} /run/netns/{namespace}"
    )
    assert status != 0
    assert "not registered" in said
    own = pool.hook(thief, "start", "mallory2", 2)
    assert value(own, "LarkInnerAddressIPv4") in pool.inside(thief, "ip -4 address show dev eth0")[1]


def test_a_process_that_outlives_its_job_keeps_no_network(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    witness = starter.scratch / "links"
    go = starter.scratch / "go"
    pool.inside(
        starter,
        f"(setsid sh -c 'while [ ! -e {go} ]; do sleep 0.05; done; ls /proc/sys/net/ipv4/conf >{witness}.new;"
        f" mv {witness}.new {witness}' >/dev/null 2>&1 &)",
    )
    pool.hook(starter, "exit", "alice", 1)
    eventually(lambda: not pool.leftovers())
    go.touch()
    eventually(witness.exists)
    assert witness.read_text().split() == ["all", "default", "lo"]
    assert pool.inside(starter, "true")[0] != 0
    assert "HookStatusCode" not in pool.hook(starter, "start", "alice", 1)
    assert pool.leftovers() == []


def test_token_and_records_are_roots_alone(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    for path in (pool.folder / "token", *(pool.folder / "worker" / "jobs").iterdir()):
        assert starter.as_user(f"cat {path}")[0] != 0
    assert pool.token not in starter.as_user("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")[1]


def test_a_program_of_the_users_choice_never_runs_as_root(pool: Pool) -> None:
    """lark-enter takes the environment after it has become the user, and reads the file as the user."""
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    secret = Path(pool.folder) / "token"
    status, said = starter.run(f"SUDO_UID={NOBODY} SUDO_GID={NOBODY} {pool.enter} {secret} /bin/true")
    assert status != 0
    assert "Permission denied" in said
    assert secret.exists()
    link = starter.scratch / "link"
    link.symlink_to(secret)
    assert starter.run(f"SUDO_UID={NOBODY} SUDO_GID={NOBODY} {pool.enter} {link} /bin/true")[0] != 0
    assert starter.run(f"SUDO_UID=0 SUDO_GID=0 {pool.enter} {secret} /bin/true")[0] != 0


def test_one_job_cannot_use_up_the_service(pool: Pool) -> None:
    greedy, other = pool.starter(1, "alice"), pool.starter(2, "bob")
    # Connections that say nothing; each is closed after some seconds of silence.
    program = (
        "import socket,sys,time\nheld=[]\nfor _ in range(60):\n s=socket.socket(socket.AF_UNIX)\n"
        f" s.connect({str(pool.socket)!r})\n held.append(s)\nprint('open',flush=True)\ntime.sleep(60)\n"
    )
    script = greedy.scratch / "greedy.py"
    script.write_text(program)
    ready = greedy.scratch / "ready"
    greedy.as_user(f"(timeout 30 /usr/bin/python3 {script} >{ready} 2>&1 &)")
    eventually(lambda: ready.exists() and "open" in ready.read_text())
    assert value(pool.hook(other, "start", "bob", 2), "LarkState") == "enforced"


def test_long_requests_of_a_job_take_no_memory(pool: Pool) -> None:
    greedy, other = pool.starter(1, "alice"), pool.starter(2, "bob")
    program = (
        "import socket,sys,threading\n"
        "line = b'a: ' + b'b' * 65000 + b'\\r\\n'\n"
        "def ask():\n s = socket.socket(socket.AF_UNIX)\n s.settimeout(20)\n"
        f" s.connect({str(pool.socket)!r})\n"
        " try:\n"
        "  s.sendall(b'GET /v1/job HTTP/1.1\\r\\n')\n"
        "  for _ in range(99): s.sendall(line)\n"
        "  s.recv(1)\n"
        " except OSError: pass\n"
        f"held = [threading.Thread(target=ask) for _ in range({CONNECTIONS_PER_JOB})]\n"
        "for one in held: one.start()\n"
        "for one in held: one.join()\n"
        "print('over', flush=True)\n"
    )
    script = greedy.scratch / "long.py"
    script.write_text(program)
    before = forget_peak()
    assert "over" in greedy.as_user(f"timeout 60 /usr/bin/python3 {script}")[1]
    # A hundred such lines of each would be 50 MB, and more while they are parsed.
    assert peak() < before + (16 << 20)
    assert value(pool.hook(other, "start", "bob", 2), "LarkState") == "enforced"
