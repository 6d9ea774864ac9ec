"""The project's own services in the lab: started, kept running, back after a loss of power."""

from __future__ import annotations

import json
import urllib.request

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import BY_NAME, EDGE_BRIDGE, REST_PORT, UPLINK
from lab.run import LabError
from lab.terminal import Forward

pytestmark = pytest.mark.kernel_datapath

WORKERS = ("worker1", "worker2")


def in_sync(lab: Lab) -> dict[str, bool]:
    return {each["name"]: each["in_sync"] for each in controller.api(lab, "/v1/switches")["switches"]}


def test_the_controller_runs_on_postgresql_and_holds_every_switch_in_sync(lab: Lab) -> None:
    assert in_sync(lab) == {"core1": True, "worker1": True, "worker2": True}
    tables = ["psql", "-h", "/run/postgresql", "-U", "lark", "-Atc", "select count(*) from alembic_version", "lark"]
    assert lab.on("controller", *tables).stdout == "1\n"
    assert "core1" in lab.run(["lark", "switches"]).stdout


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_is_set_up_as_the_how_to_says(lab: Lab, worker: str) -> None:
    assert "lark-worker runs" in lab.on(worker, "unit", "status", "lark-worker").stdout
    lab.on(worker, "lark-base-flows", "--check", EDGE_BRIDGE, UPLINK)
    offered = ["condor_status", worker, "-af", "NetworkType", "AddressType", "IPProtocol", "TotalSlotBandwidth"]
    words = lab.on("central", *offered).stdout.split()
    assert words[-3:] == ["controller", "IPv4", "1000"]


def test_a_service_that_is_killed_is_started_again_and_one_that_is_stopped_is_not(lab: Lab) -> None:
    before = lab.on("worker1", "unit", "status", "lark-worker").stdout
    lab.on("worker1", "unit", "kill", "lark-worker")
    again = 'until s=$(unit status lark-worker) && [ "$s" != "$1" ]; do sleep 0.1; done'
    lab.on("worker1", "sh", "-c", again, "lab", before.strip(), timeout=30)
    lab.on("worker1", "unit", "stop", "lark-worker")
    with pytest.raises(LabError, match="lark-worker is off"):
        lab.on("worker1", "unit", "status", "lark-worker")
    lab.on("worker1", "unit", "start", "lark-worker")
    lab.on("worker1", "sh", "-c", "until lark-worker jobs; do sleep 0.1; done", timeout=30)


@pytest.mark.parametrize("machine", ["worker2", "controller"])
def test_a_machine_that_loses_power_comes_back_with_its_services(lab: Lab, machine: str) -> None:
    lab.pool("off", machine)
    lab.pool("on", machine)
    controller.wait_in_sync(lab)
    jobs = submit.submit(
        lab, "alice", "curl -sS -m 5 http://192.0.2.1/", {"requirements": 'Machine == "worker2.lab.test"'}
    )
    submit.wait(lab, jobs, timeout=120)
    assert '"server": "wan1"' in submit.output(lab, jobs)


def test_a_port_of_this_machine_leads_to_the_controllers_page(lab: Lab) -> None:
    forward = Forward(lab, BY_NAME["controller"].address, REST_PORT)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/healthz", timeout=20) as answer:
            assert json.load(answer) == {"status": "ok"}
        with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/", timeout=20) as answer:
            assert "text/html" in answer.headers["Content-Type"]
    finally:
        forward.close()


def test_logs_of_every_service_are_kept(lab: Lab) -> None:
    lab.pool("logs")
    for machine, name in (("controller", "lark-controller"), ("worker1", "lark-worker"), ("worker2", "lark-worker")):
        assert (lab.directory / "logs" / machine / "var/log" / f"{name}.log").stat().st_size > 0
