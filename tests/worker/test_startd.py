"""A slot's ad is read into an identity, and a starter's command line into a slot."""

from __future__ import annotations

import classad2
import pytest

from lark_common.classads.ads import parse_post
from lark_worker.errors import ForgedError, RefusedError, StartdError
from lark_worker.identity.startd import Slot, read_slot, slot_name
from lark_worker.identity.trusted_ad import post_body, trusted_ads
from lark_worker.life.network_choice import choose_network
from lark_worker.settings import load

# As HTCondor 25 answers a direct query, without STARTD_JOB_ATTRS.
BARE = """\
Name = "slot1_1@worker1"
Machine = "worker1"
GlobalJobId = "submit#12.3#1700000000"
JobStart = 1700000100
RemoteOwner = "alice@example"
NetworkType = ifThenElse(TARGET.OutboundConnectivity =?= false, "none", "ovs_bridge")
"""


def slot(more: str = "", text: str = BARE) -> Slot:
    return read_slot(classad2.parseOne(text + more, classad2.Parser.Old))


def test_identity_comes_from_the_slots_ad() -> None:
    bare = slot()
    assert (bare.run.global_job_id, bare.run.started, bare.run.slot) == (
        "submit#12.3#1700000000", 1700000100, "slot1_1@worker1",
    )  # fmt: skip
    assert (bare.owner, bare.group) == ("alice", "")
    full = slot('Owner = "bob"\nAcctGroup = "group_cms"\nJobCurrentStartDate = 1700000101\n')
    assert (full.owner, full.group, full.run.started) == ("bob", "group_cms", 1700000101)


@pytest.mark.parametrize("missing", ["GlobalJobId", "RemoteOwner", "Name", "Machine"])
def test_a_slot_without_a_job_has_no_identity(missing: str) -> None:
    text = "".join(line for line in BARE.splitlines(keepends=True) if not line.startswith(missing))
    with pytest.raises(StartdError):
        slot(text=text)


def test_the_run_is_the_one_that_the_controller_sees() -> None:
    known = slot()
    merged = trusted_ads(b'RequestBandwidth = 5\nClusterId = 12\nArgs = "a\\"b"\n------\nName = "slot9@other"\n', known)
    job, machine = parse_post(post_body(merged.job, choose_network(merged, load({})).machine).encode(), "text/plain")
    assert (job.global_job_id, job.started, machine.slot) == known.run
    assert (job.owner, job.user, job.cluster, job.proc, job.bandwidth) == ("alice", "alice", 12, 3, 5)
    assert (machine.network_type, machine.address_type) == ("ovs_bridge", "controller")


@pytest.mark.parametrize(
    "body", ['Owner = "bob"', 'AcctGroup = "g"', "ProcId = 4", 'GlobalJobId = "x"', "Owner = MY.User"]
)
def test_a_job_ad_of_another_job_is_forged(body: str) -> None:
    with pytest.raises(ForgedError):
        trusted_ads(body.encode(), slot())


@pytest.mark.parametrize(
    ("job", "machine"),
    [
        ("", "WantDocker = true\n"),
        ("", "JobUniverse = 13\n"),
        ("", 'PreCmd = "prepare"\n'),
        ("", 'PostCmd = "clean"\n'),
        ("", 'LarkNetworkType = "nat"\n'),
        ("", 'LarkAddressType = "dhcp"\nLarkInnerAddressIPv4 = "10.64.0.9"\n'),
        ("", 'LarkAddressType = "static"\n'),
        ("", 'LarkVLAN = "chemistry"\n'),
        ('InboundConnectivity = false\nOutboundConnectivity = "no"\n', ""),
    ],
)
def test_what_this_worker_cannot_do_is_refused(job: str, machine: str) -> None:
    with pytest.raises(RefusedError):
        choose_network(trusted_ads(job.encode(), slot(machine)), load({}))


def test_undefined_is_not_true() -> None:
    """A job that asks for nothing gets what the site gives to all."""
    text = BARE.replace("=?= false", "")
    assert choose_network(trusted_ads(b"", slot(text=text)), load({})).network_type == "ovs_bridge"
    assert choose_network(trusted_ads(b"OutboundConnectivity = false", slot()), load({})).network_type == "none"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("condor_starter -f -a slot1_1 submit.example", "slot1_1"),
        ("condor_starter -f -local-name x -a slot1 submit.example", "slot1"),
        ("condor_starter -f -slot-name slot2_13 submit.example", "slot2_13"),
    ],
)
def test_a_starters_command_line_names_its_slot(line: str, name: str) -> None:
    assert slot_name(line.split()) == name


@pytest.mark.parametrize(
    "line", ["condor_starter -f", "condor_starter -a", 'condor_starter -a x"||true', "condor_starter -a ../x"]
)
def test_a_command_line_that_names_none_is_refused(line: str) -> None:
    with pytest.raises(StartdError):
        slot_name(line.split())


@pytest.mark.parametrize(
    ("job", "machine"),
    [
        ('InboundConnectivity = regexp("(?=(.*))(.*)(.*)\\1[xy]", "' + "a" * 1500 + '")', ""),
        ('NetworkAccounting = strcat("", userHome("root")) == "/root"', ""),
        ('A = regexp("(a+)+$", "' + "a" * 40 + '!")\nOutboundConnectivity = A', ""),
        ("Long = join(join(join(join(Owner))))", "NetworkType = TARGET.Long\n"),
        ("".join(f"A{n} = A{n + 1} + A{n + 1}\n" for n in range(40)), "LarkVLAN = TARGET.A0\n"),
    ],
)
def test_the_service_evaluates_nothing_without_a_bound(job: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    evaluate = classad2.ExprTree.eval

    def noted(tree: classad2.ExprTree, *ads: classad2.ClassAd) -> object:
        evaluated.append(repr(tree))
        return evaluate(tree, *ads)

    ads = trusted_ads(job.encode(), slot(machine))
    monkeypatch.setattr(classad2.ExprTree, "eval", noted)
    with pytest.raises(RefusedError, match=r"is not accepted in an ad|characters once|more than 64"):
        choose_network(ads, load({"LARK_WORKER_ACCOUNTING": "requested"}))
    # The slot's own expression alone.
    assert {text.partition("(")[0] for text in evaluated} <= {"ifThenElse"}
