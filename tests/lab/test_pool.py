from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from lab import submit
from lab.boot import Lab
from lab.inside.topology import BY_NAME, FAST_DELAY_MS, MACHINES, WAN_DELAY_MS
from lab.run import LabError
from lab.terminal import Forward

pytestmark = pytest.mark.kernel_datapath

WORKERS = ("worker1", "worker2")


def through(lab: Lab, machine: str, url: str) -> Any:
    return json.loads(lab.on(machine, "curl", "-sS", "--max-time", "10", url).stdout)


def test_every_machine_is_on_and_both_workers_are_in_the_pool(lab: Lab) -> None:
    status = json.loads(lab.pool("status").stdout)
    assert status == {"on": [machine.name for machine in MACHINES], "workers": list(WORKERS)}


@pytest.mark.parametrize("worker", WORKERS)
def test_a_users_job_runs_on_each_worker(lab: Lab, worker: str) -> None:
    jobs = submit.submit(lab, "alice", "id -un; hostname", {"requirements": f'Machine == "{worker}.lab.test"'})
    submit.wait(lab, jobs)
    assert submit.output(lab, jobs).split() == ["alice", f"{worker}.lab.test"]


def test_six_jobs_of_two_users_at_once(lab: Lab) -> None:
    clusters = [submit.submit(lab, user, "id -un; sleep 1", number=3) for user in ("bob", "carol")]
    for jobs in clusters:
        submit.wait(lab, jobs)
        assert [submit.output(lab, jobs, number) for number in range(3)] == [f"{jobs.user}\n"] * 3


def test_bandwidth_is_matched_and_subtracted_like_any_resource(lab: Lab) -> None:
    jobs = submit.submit(lab, "alice", 'grep -i "^Bandwidth " "$_CONDOR_MACHINE_AD"', {"request_bandwidth": "300"})
    submit.wait(lab, jobs)
    assert submit.output(lab, jobs).split() == ["Bandwidth", "=", "300"]


def test_a_job_that_asks_for_more_than_there_is_stays_idle_and_the_analysis_says_why(lab: Lab) -> None:
    jobs = submit.submit(lab, "alice", "true", {"request_bandwidth": "1001"})
    try:
        analysis = lab.on("central", "condor_q", str(jobs.cluster), "-better-analyze", user="alice").stdout
        assert "No machines matched the job's constraints" in " ".join(analysis.split())
        assert submit.attribute(lab, jobs, "JobStatus") == "1"
    finally:
        lab.on("central", "condor_rm", str(jobs.cluster), user="alice")


@pytest.mark.parametrize("address", ["192.0.2.1", "[3fff:0:1::1]"])
def test_the_wan_is_reached_through_the_ordinary_way_and_sees_who_asks(lab: Lab, address: str) -> None:
    answer = through(lab, "worker1", f"http://{address}/")
    assert (answer["server"], answer["through"]) == ("wan1", "wan")
    assert answer["client"] in ("10.0.0.11", "2001:db8::b")


@pytest.mark.parametrize(("gateway", "address"), [("10.0.0.2", "198.51.100.1"), ("2001:db8::2", "3fff:0:2::1")])
def test_the_wan_answers_by_the_way_by_which_it_is_asked(lab: Lab, gateway: str, address: str) -> None:
    target = f"[{address}]" if ":" in address else address
    lab.on("worker2", "ip", "route", "add", address, "via", gateway)
    try:
        assert through(lab, "worker2", f"http://{target}/")["through"] == "wan-fast"
        with_udp = f"echo lark | nc -u -w 5 -W 1 {address} 7"
        assert lab.on("worker2", "sh", "-c", with_udp).stdout == "lark\n"
    finally:
        lab.on("worker2", "ip", "route", "del", address)


def test_each_way_has_its_delay(lab: Lab) -> None:
    if lab.choice.kind == "userspace":
        pytest.fail("the lab has no delay with LAB_KIND=userspace: run these tests natively or in User Mode Linux")
    for gateway, least in (("10.0.0.1", WAN_DELAY_MS), ("10.0.0.2", FAST_DELAY_MS)):
        lab.on("worker1", "ip", "route", "replace", "192.0.2.1", "via", gateway)
        try:
            fastest = lab.on("worker1", "ping", "-c", "5", "-i", "0.2", "-q", "192.0.2.1").stdout
            assert least <= float(fastest.rsplit("=", 1)[1].split("/")[0])
        finally:
            lab.on("worker1", "ip", "route", "del", "192.0.2.1")


def test_bridges_are_ready_for_a_controller(lab: Lab) -> None:
    for name in ("core", *WORKERS):
        bridge = BY_NAME[name].bridge
        assert bridge is not None
        show = lab.on(name, "ovs-vsctl", "get", "bridge", bridge.name, "fail_mode", "datapath_id").stdout.split()
        assert [value.strip('"') for value in show] == ["secure", bridge.datapath_id]
        for number, port in enumerate(bridge.ports, start=1):
            assert lab.on(name, "ovs-vsctl", "get", "interface", port, "ofport").stdout == f"{number}\n"


def test_the_dhcp_server_leases_an_address_of_the_jobs_network(lab: Lab) -> None:
    script = (
        "ip link add lease0 link eth0 type macvlan mode bridge && ip link set lease0 up && "
        "udhcpc -f -q -n -t 5 -i lease0 -s /bin/true 2>&1; status=$?; ip link del lease0; exit $status"
    )
    assert "lease of 10.64.250." in lab.on("central", "sh", "-c", script).stdout


def test_the_controllers_machine_has_its_database(lab: Lab) -> None:
    query = ["psql", "-h", "/run/postgresql", "-U", "lark", "-Atc", "select current_user", "lark"]
    assert lab.on("controller", *query).stdout == "lark\n"


def test_the_project_is_installed_as_a_site_would(lab: Lab) -> None:
    where = lab.on(
        "controller", "/opt/lark/bin/python", "-c", "import lark_controller; print(lark_controller.__file__)"
    )
    assert where.stdout.startswith("/opt/lark/lib/")


def test_a_port_on_the_outside_leads_into_the_lab(lab: Lab) -> None:
    forward = Forward(lab, "192.0.2.1", 80)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/", timeout=20) as answer:
            assert json.load(answer)["client"] == "10.0.0.254"
    finally:
        forward.close()


def test_a_worker_that_loses_power_comes_back_with_its_disk(lab: Lab) -> None:
    lab.write("worker2", "/var/lib/lark-test", "kept\n")
    lab.write("worker2", "/run/lark-test", "lost\n")
    lab.pool("off", "worker2")
    with pytest.raises(LabError, match="off"):
        lab.on("worker2", "true")
    lab.pool("on", "worker2")
    assert lab.on("worker2", "sh", "-c", "cat /var/lib/lark-test; ls /run/lark-test 2>&1; true").stdout.startswith(
        "kept\nls: "
    )
    jobs = submit.submit(lab, "alice", "hostname", {"requirements": 'Machine == "worker2.lab.test"'})
    submit.wait(lab, jobs, timeout=120)
    assert submit.output(lab, jobs) == "worker2.lab.test\n"


def test_a_command_that_does_not_end_is_killed_and_said_so(lab: Lab) -> None:
    with pytest.raises(LabError, match="no end within 1 s"):
        lab.run(["sh", "-c", "echo begun; sleep 1000.5"], timeout=1)
    assert lab.run(["pgrep", "-f", "sleep 1000.5"], check=False).stdout == ""


def test_bytes_pass_in_both_directions_unchanged(lab: Lab) -> None:
    text = "".join(chr(32 + number % 90) for number in range(300_000))
    assert lab.run(["cat"], stdin=text).stdout == text
