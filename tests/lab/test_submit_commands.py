"""The network's commands of submit files: what they become, what is refused at submission, and the shipped views."""

from __future__ import annotations

import pytest

from lab import submit
from lab.boot import Lab
from lab.jobs import Wish, running
from tests.lab.trials import configured

HELD = {"hold": "true"}


def attributes(lab: Lab, jobs: submit.Jobs, *names: str, process: int = 0) -> list[str]:
    printed = lab.on("central", "condor_q", f"{jobs.cluster}.{process}", "-af", *names, user=jobs.user).stdout
    return printed.split()


def test_commands_become_the_attributes_that_workers_and_policies_read(lab: Lab) -> None:
    commands = {
        "network_vlan": "physics", "network_protocol": "IPv6", "inbound_connectivity": "false",
        "outbound_connectivity": "true", "network_accounting": "true", "bandwidth_mode": "guarantee",
        "external_address": "true", "external_ports": "tcp/80,udp/5000-5010", "external_family": "both",
        "external_name": "web", "mpi_bandwidth": "ring_40", "scitag_activity": "5",
    }  # fmt: skip
    jobs = submit.submit(lab, "alice", "true", {**commands, **HELD})
    try:
        names = (
            "RequestedVLAN", "IPProtocol", "InboundConnectivity", "OutboundConnectivity", "NetworkAccounting",
            "BandwidthMode", "RequestExternalAddress", "ExternalPorts", "ExternalFamily", "ExternalName",
            "RequestMpiBandwidth", "ScitagActivity",
        )  # fmt: skip
        expected = [
            "physics", "IPv6", "false", "true", "true", "guarantee", "true", "tcp/80,udp/5000-5010", "both", "web",
            "ring_40", "5",
        ]  # fmt: skip
        assert attributes(lab, jobs, *names) == expected
        assert attributes(lab, jobs, "isInteger(ScitagActivity)") == ["true"]
        assert set(attributes(lab, jobs, *commands)) == {"undefined"}
    finally:
        lab.on("central", "condor_rm", str(jobs.cluster), user="alice")


def test_jobs_that_are_made_late_have_each_a_vlan_of_its_own(lab: Lab) -> None:
    lines = {**HELD, "max_materialize": "2", "network_vlan": "$CHOICE(Process,42,physics)"}
    jobs = submit.submit(lab, "alice", "true", lines, number=2)
    try:
        shown = [attributes(lab, jobs, "RequestedVLAN", "isInteger(RequestedVLAN)", process=each) for each in (0, 1)]
        assert shown == [["42", "true"], ["physics", "false"]]
    finally:
        lab.on("central", "condor_rm", str(jobs.cluster), user="alice")


def test_a_vlan_that_is_asked_for_by_command_is_matched_without_a_requirement(lab: Lab) -> None:
    vlan = "VLAN = 42\nSTARTD_ATTRS = $(STARTD_ATTRS) VLAN\n"
    with (
        configured(lab, "worker2", vlan, "VLAN"),
        running(lab, [Wish("alice", {"network_vlan": "42"}), Wish("alice", {"network_vlan": "42"})]) as started,
    ):
        assert [job.worker for job in started] == ["worker2", "worker2"]


REFUSED = [
    ("request_bandwidth", "22.5", "request_bandwidth is a whole number"),
    ("+RequestBandwidth", "-1", "request_bandwidth is a whole number"),
    ("bandwidth_mode", "most", "bandwidth_mode is cap"),
    ("+BandwidthMode", "7", "bandwidth_mode is cap"),
    ("network_protocol", "IPv5", "network_protocol is IPv4 or IPv6"),
    ("network_vlan", "4095", "network_vlan is a number from 1 to 4094"),
    ("+RequestedVLAN", "0", "network_vlan is a number from 1 to 4094"),
    ("inbound_connectivity", "perhaps", "must eval to a boolean"),
    ("+OutboundConnectivity", '"no"', "are true or false"),
    ("+RequestExternalAddress", '"yes"', "external_address is true or false"),
    ("external_ports", "tcp/80; udp/53", "external_ports is a list of"),
    ("external_ports", "sctp/80", "external_ports is a list of"),
    ("+ExternalPorts", "80", "external_ports is a list of"),
    ("external_family", "ipv5", "external_family is ipv4, ipv6 or both"),
    ("external_name", "my_web", "external_name is letters"),
    ("+RequestMpiBandwidth", "40", "mpi_bandwidth is a pattern"),
    ("scitag_activity", "64", "scitag_activity is a number from 1 to 63"),
]


@pytest.mark.parametrize(("command", "value", "reason"), REFUSED)
def test_nonsense_is_refused_at_submission_with_what_is_accepted(
    lab: Lab, command: str, value: str, reason: str
) -> None:
    text = submit.description("/bin/true", {command: value}, 1)
    lab.write("central", "/home/alice/nonsense.sub", text, user="alice")
    refused = lab.on("central", "sh", "-c", "condor_submit nonsense.sub 2>&1", user="alice", check=False)
    assert refused.status != 0
    assert reason in refused.stdout


def test_the_help_names_every_command(lab: Lab) -> None:
    shown = lab.on("central", "condor_submit", "-capabilities", user="alice").stdout
    commands = [line.split()[0] for line in shown.splitlines() if " value is " in line]
    assert len(commands) == 12
    explanation = shown.partition("Has Extended help")[2]
    assert all(command in explanation for command in (*commands, "request_bandwidth"))


def test_the_shipped_views_show_jobs_and_slots(lab: Lab) -> None:
    wish = Wish("alice", {"inbound_connectivity": "false", "request_bandwidth": "70"}, worker="worker1")
    with running(lab, [wish]) as (job,):
        jobs = lab.on(
            "central", "condor_q", "-all", "-wide", "-print-format", "/etc/condor/lark-jobs.cpf", user="alice"
        ).stdout
        (line,) = [each.split() for each in jobs.splitlines() if " R " in each]
        assert line[1:3] == ["alice", "R"]
        assert line[3].startswith(job.worker)
        assert line[4:10] == ["70", "-", "-", "false", "-", "-"]
        slots = lab.on(
            "central", "condor_status", "-wide", "-print-format", "/etc/condor/lark-slots.cpf", user="alice"
        ).stdout
        (taken,) = [each.split() for each in slots.splitlines() if "Claimed" in each and "alice@" in each]
        assert taken[2:6] == ["ovs_bridge", "IPv4", "-", "70"]
    past = ["condor_history", "-wide", "-limit", "1", "-print-format", "/etc/condor/lark-jobs.cpf"]
    (shown,) = [each.split() for each in lab.on("central", *past, user="alice").stdout.splitlines()[1:] if each]
    assert shown[1] == "alice"
