"""``lark-worker check`` on a worker that has everything, and with each part missing in turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from lab.run import free_port, run
from lark_controller.rest.tokens import Scope, add
from lark_controller.switches.fence import Fence
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.openflow.loop_thread import KeptSwitches
from lark_worker import checks, cli
from lark_worker.checks import Finding, HTCondor, State
from lark_worker.errors import NetworkError, StartdError
from lark_worker.identity.startd import LocalStartd
from lark_worker.settings import Settings, load
from tests.fixtures.certificates import certificate
from tests.worker.pool import FakeStartd, Pool, eventually

HOST = "worker1.example"
NO_PROBLEM: dict[str, Any] = {"jobs": 0, "problems": []}


@pytest.fixture
def condor(tmp_path: Path) -> HTCondor:
    for name in ("lark-start", "lark_job_wrapper.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    known = {
        "FULL_HOSTNAME": HOST,
        "STARTER_JOB_HOOK_KEYWORD": "lark",
        "LARK_HOOK_PREPARE_JOB": str(tmp_path / "lark-start"),
        "USER_JOB_WRAPPER": str(tmp_path / "lark_job_wrapper.sh"),
        "STARTD_JOB_ATTRS": "x509userproxysubject, owner User GlobalJobId JobCurrentStartDate",
    }
    return HTCondor(known, (25, 14, 1), FakeStartd())


def found(settings: Settings, condor: HTCondor, status: dict[str, Any] | None = NO_PROBLEM) -> list[Finding]:
    return list(checks.findings(settings, condor, lambda: status))


def of(subject: str, settings: Settings, condor: HTCondor, status: dict[str, Any] | None = NO_PROBLEM) -> list[Finding]:
    return [each for each in found(settings, condor, status) if each.subject == subject]


def wrong(found: list[Finding]) -> list[str]:
    return [each.words for each in found if each.state is not State.OK]


@pytest.mark.ovs
def test_a_worker_that_has_everything_lacks_nothing(pool: Pool, condor: HTCondor) -> None:
    settings = load(pool.environment | {"LARK_WORKER_GATEWAYS": "10.64.0.1"})
    connected(settings, condor)
    by_subject = {each.subject: each for each in found(settings, condor)}
    assert pool.bridge in by_subject["Open vSwitch"].words
    for subject in ("Open vSwitch", "controller", "HTCondor", "addresses", "service"):
        assert wrong(of(subject, settings, condor)) == [], subject
    missing = [each for each in found(settings, condor) if each.state is State.MISSING and each.subject != "sudo"]
    # The tests need no sudo, and a machine for them may have none.
    assert {each.words for each in missing} <= {"not installed: sudo"}


@pytest.mark.ovs
def test_the_bridge_is_there_safe_and_connected(pool: Pool, condor: HTCondor) -> None:
    settings = load(pool.environment)
    connected(settings, condor)
    (words,) = wrong(of("Open vSwitch", replace(settings, bridge="lark-none"), condor))
    assert "has no bridge lark-none (LARK_WORKER_BRIDGE); lark-worker bridge make" in words
    (words,) = wrong(of("Open vSwitch", replace(settings, ovs_database="unix:/nowhere"), condor))
    assert "its database does not answer" in words
    pool.ovs.vsctl("set-fail-mode", pool.bridge, "standalone")
    (words,) = wrong(of("Open vSwitch", settings, condor))
    assert words.endswith(f"ovs-vsctl set-fail-mode {pool.bridge} secure")
    pool.ovs.vsctl("set-fail-mode", pool.bridge, "secure")
    target = pool.ovs.vsctl("get-controller", pool.bridge).split()
    pool.ovs.vsctl("set-controller", pool.bridge, "tcp:127.0.0.1:1")
    refused = (
        f"bridge {pool.bridge} is not connected to tcp:127.0.0.1:1 (Connection refused): is the controller running"
    )
    eventually(lambda: wrong(of("Open vSwitch", settings, condor))[0].startswith(refused))
    pool.ovs.set_controller(pool.bridge, [*target, "tcp:127.0.0.1:1"])
    eventually(lambda: wrong(of("Open vSwitch", settings, condor)) == [])
    (found,) = of("Open vSwitch", settings, condor)
    assert found.words == f"bridge {pool.bridge} is connected to {target[0]}, not to tcp:127.0.0.1:1"
    pool.ovs.vsctl("del-controller", pool.bridge)
    # Connected, and nobody writes to it.
    assert pool.controller is not None
    generation, port = pool.controller.term.generation, free_port()
    kept = KeptSwitches(OpenFlowOptions(listen=(("127.0.0.1", port),)), Fence(), lambda: generation)
    kept.start()
    pool.ovs.set_controller(pool.bridge, f"tcp:127.0.0.1:{port}")
    stands_by = f"bridge {pool.bridge} is connected to tcp:127.0.0.1:{port}: none of these is the active controller"
    eventually(lambda: wrong(of("Open vSwitch", settings, condor))[0].startswith(stands_by))
    kept.stop()
    pool.ovs.vsctl("del-controller", pool.bridge)
    (words,) = wrong(of("Open vSwitch", settings, condor))
    assert f"bridge {pool.bridge} has no controller" in words


@pytest.mark.ovs
def test_an_address_at_an_uplink_is_found(pool: Pool, condor: HTCondor) -> None:
    """The machine's network settings are those of before it had the bridge."""
    settings = load(pool.environment)
    card = f"c{pool.bridge}"[:15]
    run(["ip", "link", "add", card, "type", "veth", "peer", "name", f"p{pool.bridge}"[:15]])
    try:
        pool.ovs.vsctl("add-port", pool.bridge, card)
        assert list(checks._uplinks(settings)) == []
        nat = replace(settings, nat_networks=(ip_network("10.9.0.0/24"),), external_interface=card)
        told = [each.words for each in checks._addresses(nat) if each.state is State.MISSING]
        assert told == [
            f"{card} is a port of {pool.bridge}, so nothing of nat jobs leaves by it: "
            f"LARK_WORKER_EXTERNAL_INTERFACE={pool.bridge}"
        ]
        inside = replace(nat, external_interface=pool.bridge)
        assert [each for each in checks._addresses(inside) if each.state is State.MISSING] == []
        run(["ip", "address", "add", "10.77.0.2/24", "dev", card])
        (found,) = checks._uplinks(settings)
        assert found.state is State.MISSING
        assert found.words.startswith(f"{card} is a port of {pool.bridge} and has 10.77.0.2/24, which belongs")
        assert found.words.endswith(f"lark-worker bridge make {pool.bridge} {card}")
    finally:
        pool.ovs.vsctl("--if-exists", "del-port", pool.bridge, card)
        run(["ip", "link", "del", card])


@pytest.mark.ovs
def test_the_controller_is_asked_with_this_workers_own_token(pool: Pool, condor: HTCondor, tmp_path: Path) -> None:
    settings = load(pool.environment)
    other = tmp_path / "other"
    other.write_text(add(pool.folder / "tokens.yaml", "other", [Scope.HOOK], hosts=("worker2.example",)))
    other.chmod(0o600)
    (words,) = wrong(of("controller", replace(settings, token_file=other), condor))
    assert HOST in words
    other.write_text("nonsense")
    (words,) = wrong(of("controller", replace(settings, token_file=other), condor))
    assert "token" in words.lower()
    other.chmod(0o644)
    (words,) = wrong(of("controller", replace(settings, token_file=other), condor))
    assert "accepted: mode 0600" in words
    (words,) = wrong(of("controller", replace(settings, url="http://127.0.0.1:1"), condor))
    assert words.startswith("http://127.0.0.1:1: ")
    both = replace(settings, url=f"http://127.0.0.1:1 {settings.url}")
    first, second = of("controller", both, condor)
    assert (first.state, second.state) == (State.WARNING, State.OK)
    assert first.words.startswith("http://127.0.0.1:1: ")


@pytest.mark.ovs
def test_certificates_that_end_are_told_with_what_to_do(pool: Pool, condor: HTCondor, tmp_path: Path) -> None:
    settings = load(pool.environment)
    assert of("certificates", settings, condor) == []
    far, near, over = (certificate(tmp_path, name, ends=timedelta(days=days))[0] for name, days in ENDS.items())
    pool.ovs.vsctl("set-ssl", str(tmp_path / "far.key"), str(far), str(near))
    try:
        words, first = (each.words for each in of("certificates", settings, condor))
        assert words.startswith(f"{near} ends soon (")
        assert f"lark join add {HOST}, and here lark-worker setup --controller {settings.url} --join TOKEN" in words
        assert first.startswith(f"the first to end is {far}, on ")
        found = of("certificates", replace(settings, cert_file=over, key_file=tmp_path / "over.key"), condor)
        assert [each.state for each in found] == [State.MISSING, State.WARNING, State.OK]
        assert found[0].words.startswith(f"{over} has expired (")
        (broken, *_) = of("certificates", replace(settings, ca_file=tmp_path / "far.key"), condor)
        assert broken.words.startswith(f"{tmp_path / 'far.key'} cannot be read as a certificate")
        (absent, *_) = of("certificates", replace(settings, ca_file=tmp_path / "none.pem"), condor)
        assert absent.words.startswith(f"there is no {tmp_path / 'none.pem'}: on the controller's host lark join add")
        assert all("\n" not in each.words for each in (broken, absent))
    finally:
        pool.ovs.vsctl("del-ssl")


ENDS = {"far": 40, "near": 20, "over": -1}


def connected(settings: Settings, condor: HTCondor) -> None:
    eventually(lambda: wrong(of("Open vSwitch", settings, condor)) == [])


KNOBS: list[tuple[Callable[[dict[str, str]], Any], str]] = [
    (lambda known: known.pop("STARTER_JOB_HOOK_KEYWORD"), "STARTER_JOB_HOOK_KEYWORD is not set"),
    (lambda known: known.pop("LARK_HOOK_PREPARE_JOB"), "LARK_HOOK_PREPARE_JOB is not set: no job is registered"),
    (lambda known: known.update(USER_JOB_WRAPPER="/nowhere"), "USER_JOB_WRAPPER: /nowhere is not there"),
    (lambda known: known.update(STARTD_JOB_ATTRS="Owner"), "STARTD_JOB_ATTRS lacks GlobalJobId, JobCurrentStartDate"),
]


@pytest.mark.parametrize(("change", "words"), KNOBS, ids=[words.split()[0] for _, words in KNOBS])
def test_htcondor_calls_the_hook_and_the_wrapper(change: Callable[[dict[str, str]], Any], words: str) -> None:
    program = "/bin/true"
    known = {
        "STARTER_JOB_HOOK_KEYWORD": "LARK",
        "LARK_HOOK_PREPARE_JOB": program,
        "USER_JOB_WRAPPER": program,
        "STARTD_JOB_ATTRS": "Owner GlobalJobId JobCurrentStartDate",
    }
    settings = replace(Settings(), starters=(program,))
    whole = HTCondor(dict(known), (25, 14, 1), FakeStartd())
    assert wrong(list(checks._htcondor(settings, whole))) in ([], [*_sudo()])
    change(known)
    found = wrong(list(checks._htcondor(settings, HTCondor(known, (25, 14, 1), FakeStartd()))))
    assert [each for each in found if words in each]


def _sudo() -> list[str]:
    return wrong(list(checks._way_in()))


@pytest.mark.parametrize(
    ("version", "network", "words"),
    [
        ((23, 0, 1), None, "version 23.0.1 cannot start jobs in an empty network namespace"),
        ((25, 14, 1), True, "NO_JOB_NETWORKING is not set"),
        ((25, 14, 1), StartdError("the startd cannot be asked: nobody there"), "nobody there"),
    ],
)
def test_a_wrapper_that_can_be_got_around_is_found(
    version: tuple[int, ...], network: bool | StartdError | None, words: str
) -> None:
    startd = FakeStartd()
    startd.network = network
    found = wrong(list(checks._htcondor(Settings(), HTCondor({"A": "b"}, version, startd))))
    assert [each for each in found if words in each]


@pytest.mark.parametrize(
    ("version", "network", "state"),
    [
        ((25, 14, 1), False, State.MISSING),
        ((25, 15, 0), False, State.WARNING),
        # With the worker's network jobs start, which is the other finding.
        ((25, 14, 1), True, None),
    ],
)
def test_a_hook_before_the_transfer_that_keeps_jobs_from_starting_is_found(
    version: tuple[int, ...], network: bool, state: State | None
) -> None:
    startd = FakeStartd()
    startd.network = network
    knob = "LARK_HOOK_PREPARE_JOB_BEFORE_TRANSFER"
    words = f"{knob} is set, and so is NO_JOB_NETWORKING"
    for knobs, expected in (
        ({"STARTER_JOB_HOOK_KEYWORD": "Lark"}, []), ({knob: ""}, []), ({knob: "/bin/true"}, [state])
    ):  # fmt: skip
        found = checks._htcondor(Settings(), HTCondor({"A": "b", **knobs}, version, startd))
        assert [each.state for each in found if words in each.words] == (expected if state else [])


def test_a_startd_that_does_not_run_is_told_with_what_to_do(tmp_path: Path) -> None:
    condor = HTCondor({"A": "b"}, (25, 14, 1), LocalStartd(tmp_path / "address"))
    found = wrong(list(checks._htcondor(Settings(), condor)))
    assert f"the startd does not run (there is no {tmp_path / 'address'}): condor_on -startd" in found


def test_without_htcondor_the_reason_is_told() -> None:
    found = list(checks._htcondor(Settings(), HTCondor({}, (), None, "no configuration")))
    assert [(each.state, each.words) for each in found] == [(State.MISSING, "no configuration")]


def test_addresses_that_jobs_could_not_use_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(**environ: str) -> list[str]:
        return wrong(list(checks._addresses(load({f"LARK_WORKER_{k.upper()}": v for k, v in environ.items()}))))

    assert words(networks="10.64.0.0/16", gateways="10.64.0.1") == []
    assert words(address_type="dhcp") == []
    assert "LARK_WORKER_NETWORKS is empty" in words()[0]
    assert "reach their own network alone" in words(networks="10.64.0.0/16")[0]
    nat = words(networks="10.64.0.0/16", gateways="10.64.0.1", nat_networks="10.9.0.0/24")
    assert nat == ["LARK_WORKER_EXTERNAL_INTERFACE is empty, and nat jobs need it beside the other one"]
    gone = words(networks="10.64.0.0/16", gateways="10.64.0.1", linux_bridge="lark-none")
    assert gone == ["there is no interface lark-none"]
    monkeypatch.setattr(checks, "RESOLV", tmp_path / "resolv.conf")
    told = words(networks="10.64.0.0/16", gateways="10.64.0.1", nameservers="10.64.0.53")
    assert ["no job can start; make one" in each for each in told] == [True]
    (tmp_path / "resolv.conf").touch()
    assert words(networks="10.64.0.0/16", gateways="10.64.0.1", nameservers="10.64.0.53") == []


def test_the_kernel_is_tried_for_what_this_workers_jobs_need() -> None:
    subjects = [each.words.partition(" (")[0] for each in checks._kernel(Settings())]
    assert subjects[0] == "network namespaces and veth"
    assert not any("masquerading" in each for each in subjects)
    nat = load({"LARK_WORKER_NAT_NETWORKS": "10.9.0.0/24", "LARK_WORKER_LINUX_BRIDGE": "br1"})
    assert [each.words for each in checks._kernel(nat) if each.state is State.MISSING] == []
    assert len(list(checks._kernel(nat))) == 6


def test_a_reason_of_several_lines_is_one_line(monkeypatch: pytest.MonkeyPatch, condor: HTCondor) -> None:
    def refused(command: list[str], *_: object, **__: object) -> str:
        what = "add table bridge a\n^^^^^^^^^^^^^^^^^^^" if "nft" in command[-1] else "second line"
        raise NetworkError(f"{' '.join(command)}: Error: Could not process rule: Operation not supported\n{what}")

    monkeypatch.setattr(checks, "run", refused)
    everything = found(load({"LARK_WORKER_LINUX_BRIDGE": "br1"}), condor)
    (nft,) = [each for each in everything if each.words.startswith("nftables")]
    assert nft == Finding("kernel", State.MISSING, "nftables: Operation not supported")
    (ovs,) = [each for each in everything if each.words.startswith("its database does not answer")]
    assert ovs.words.endswith("Operation not supported second line")
    assert not [each for each in everything if "\n" in each.words]


def test_a_service_that_is_away_or_has_problems_is_told(tmp_path: Path) -> None:
    settings = replace(Settings(), socket=tmp_path / "none")
    assert "systemctl status lark-worker" in next(checks._service(settings, None)).words
    found = list(checks._service(settings, {"jobs": 3, "problems": ["one", "another"]}))
    assert [(each.state, each.words) for each in found] == [(State.WARNING, "one"), (State.WARNING, "another")]


@pytest.mark.ovs
def test_the_command_has_lines_for_people_and_json_for_scripts(
    pool: Pool, condor: HTCondor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected(load(pool.environment), condor)
    for name, value in pool.environment.items():
        monkeypatch.setenv(name, value)
    status = cli.main(["check"])
    lines = capsys.readouterr().out.splitlines()
    assert cli.main(["check", "--json"]) == status == 1
    as_json = json.loads(capsys.readouterr().out)
    assert [f"{each['state']:<8} {each['subject']}: {each['words']}" for each in as_json] == lines
    assert {each["state"] for each in as_json} <= {"ok", "warning", "missing"}
    assert any(line.startswith("ok       Open vSwitch: bridge") for line in lines)
    assert cli.main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    cli.main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["jobs"] == 0


@pytest.mark.ovs
def test_jobs_are_listed_by_the_names_that_htcondors_users_have(
    pool: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in pool.environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["jobs"]) == 0
    assert capsys.readouterr().out == ""
    pool.hook(pool.starter(7, "alice"), "start", "alice", 7)
    assert cli.main(["jobs"]) == 0
    head, job = capsys.readouterr().out.splitlines()
    assert head.split() == ["JOB", "SLOT", "OWNER", "STATE", "ADDRESSES", "NAMESPACE"]
    assert job.split()[:4] == ["7.0", "slot1_7@worker1", "alice", "enforced"]
    # Two access points may have one number.
    of_seven = {"slot": "s", "owner": "bob", "state": "pending", "addresses": [], "namespace": "n"}
    ids = ("one.example#7.0#1", "two.example#7.0#2", "two.example#8.0#3")
    answer = {"jobs": [{"id": each, "global_job_id": each, **of_seven} for each in ids]}
    monkeypatch.setattr(cli, "_ask", lambda settings, path: answer)
    assert cli.main(["jobs"]) == 0
    named = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert named == ["JOB", "one.example#7.0", "two.example#7.0", "8.0"]
