"""Programs that HTCondor starts beside a job: containers, and the shell that condor_ssh_to_job opens.

Debian has no Apptainer. HTCondor's own part (which program it starts, by which way, with which arguments) needs none: a
program stands in its place that notes where it runs, and starts what it is given without a container around it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab import submit
from lab.boot import Lab
from lab.run import LabError

STANDIN = """\
#!/bin/sh
case ${1:-} in --version) echo 'apptainer version 1.4.0'; exit 0 ;; esac
{ printf '%s in ' "$1"; ls /proc/sys/net/ipv4/conf | tr '\\n' ' '; echo; } \
    >>/var/log/standin/log
while [ $# -gt 0 ]; do
    case $1 in
        *.sif | */singularity_test_sandbox) shift; break ;;
        *) shift ;;
    esac
done
case ${1:-} in /exit_37) exit 37 ;; '') exit 0 ;; esac
exec "$@"
"""
CONFIG = """\
SINGULARITY = /usr/local/bin/standin
DOCKER =
"""
ON_WORKER1 = {"requirements": 'Machine == "worker1.lab.test"'}
CONTAINER = {**ON_WORKER1, "universe": "container", "container_image": "image.sif", "transfer_input_files": "image.sif"}
INSIDE = "ls /proc/sys/net/ipv4/conf"


@pytest.fixture(scope="module")
def runtime(lab: Lab) -> Iterator[Lab]:
    # Root and users write there.
    lab.on("worker1", "sh", "-c", "mkdir -p /var/log/standin; >/var/log/standin/log; chmod 666 /var/log/standin/log")
    lab.write("worker1", "/usr/local/bin/standin", STANDIN, mode=0o755)
    lab.write("worker1", "/etc/condor/config.d/90-standin.conf", CONFIG)
    lab.on("worker1", "condor_restart", "-startd")
    known = 'until condor_status -af Machine HasSIF | grep -q "worker1.*true"; do sleep 0.5; done'
    lab.on("central", "sh", "-c", known, timeout=90)
    yield lab
    lab.on("worker1", "rm", "/etc/condor/config.d/90-standin.conf", "/usr/local/bin/standin")
    lab.on("worker1", "condor_restart", "-startd")


def sent(lab: Lab, script: str, attributes: dict[str, str]) -> submit.Jobs:
    """A job of alice's, with an image beside it where it wants one."""
    lab.write("central", "/home/alice/image.sif", "none", user="alice")
    if "container_image" in attributes:
        attributes = {**attributes, "container_image": "/home/alice/image.sif"}
        attributes.pop("transfer_input_files")
    return submit.submit(lab, "alice", script, attributes)


def running(lab: Lab, jobs: submit.Jobs) -> None:
    lab.on(
        "central", "sh", "-c", f'until [ "$(condor_q {jobs.cluster} -af JobStatus)" = 2 ]; do sleep 0.3; done',
        user="alice", timeout=60,
    )  # fmt: skip


def test_a_container_job_runs_in_its_namespace_and_nothing_of_the_image_outside(runtime: Lab) -> None:
    # Everybody may add to it, the job's user and the startd.
    runtime.on("worker1", "install", "-m", "666", "/dev/null", "/var/log/standin/log")
    jobs = sent(runtime, INSIDE, CONTAINER)
    submit.wait(runtime, jobs)
    assert submit.output(runtime, jobs).split() == ["all", "default", "eth0", "lo"]
    ran = runtime.on("worker1", "cat", "/var/log/standin/log").stdout.splitlines()
    assert ran
    assert all(line.split()[2:] == ["all", "default", "eth0", "lo"] for line in ran)


def session(runtime: Lab, cluster: int) -> str:
    """The output of a session. HTCondor calls a job running while its hooks run, and a session then has no namespace
    yet to be in: it is closed, and opened again."""
    for attempt in range(10):
        try:
            return runtime.on(
                "central", "condor_ssh_to_job", "-auto-retry", str(cluster), INSIDE, user="alice", timeout=60
            ).stdout
        except LabError as error:
            if "Connection closed" not in str(error) or attempt == 9:
                raise
            time.sleep(2)
    raise AssertionError("there was no attempt")


def test_a_session_of_condor_ssh_to_job_is_in_the_jobs_namespace(runtime: Lab) -> None:
    jobs = sent(runtime, "sleep 300", ON_WORKER1)
    running(runtime, jobs)
    try:
        assert session(runtime, jobs.cluster).split() == ["all", "default", "eth0", "lo"]
    finally:
        runtime.on("central", "condor_rm", str(jobs.cluster), user="alice")


def test_a_session_in_a_container_job_is_refused(runtime: Lab) -> None:
    jobs = sent(runtime, "sleep 60; ls -a", CONTAINER)
    running(runtime, jobs)
    try:
        with pytest.raises(LabError, match="ENABLE_SSH_TO_JOB=false"):
            runtime.on(
                "central", "condor_ssh_to_job", "-auto-retry", str(jobs.cluster), INSIDE, user="alice", timeout=60
            )
        # HTCondor enters a container for whoever can reach this socket, and not into its network.
        found = runtime.on("worker1", "sh", "-c", "find /var/lib/condor/execute -name .docker_sock").stdout
        assert found == ""
    finally:
        runtime.on("central", "condor_rm", str(jobs.cluster), user="alice")
