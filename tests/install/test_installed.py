"""The packages on a site of four machines, by the commands of the how-to pages.

Each test goes on where the one before it has ended.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.inside.topology import BY_NAME, DOMAIN
from lark_controller import __version__
from tests.install.jobs import Job, start
from tests.install.machine import wait_until
from tests.install.site import ROUTER, WORKERS, Site, distribution, in_pool

# Blocks that are not run, by their first lines, each with the reason.
NOT_RUN: dict[str, dict[str, str]] = {
    "controller.md": {
        "make packages DISTRIBUTIONS=debian12      # or debian13, el9, el10; without it all four": "the fixture builds",
    },
    "worker.md": {
        "$ lark-worker status": "an answer",
        "ok       Open vSwitch: bridge br0 is connected to ssl:10.0.0.5:6653": "an answer",
        "LARK_WORKER_NETWORKS=10.64.0.0/16,2001:db8:64::/48": "what lark setup has written into join.env",
        "LARK_WORKER_LINUX_BRIDGE=br-jobs": "NetworkType bridge: the lab's",
        'nft add rule inet filter forward iifname "lark*" accept': "the workers have no rules of their own",
    },
    "open-vswitch.md": {
        "lark-worker bridge make br0 eth0 --datapath-id 00000000000000e1": "needs the kernel's module",
        "ovs-vsctl add-br br0 \\": "the bridge by hand, instead of by lark-worker",
        "ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev": "the bridge by hand, instead of by lark-worker",
        "ovs-vsctl set-ssl /etc/lark/switch.key /etc/lark/switch.pem /etc/lark/ca.pem": "lark-worker setup does it",
        "ovs-vsctl set-controller br0 tcp:192.0.2.10:6653 \\": "plain OpenFlow, instead of TLS",
        "ovs-vsctl \\": "several controllers: tests/worker/test_several_controllers.py",
    },
    "idtokens.md": {
        "ssh root@cm.example 'umask 077 && mkdir -p lark-keys && cat > lark-keys/lark' < /etc/lark/condor-keys/lark": (
            "the site has no ssh: the test copies the file"
        ),
    },
    "jobs.md": {
        "executable = transfer.sh": "its bandwidth needs queues, which a switch in user space has not",
    },
}


@pytest.fixture(scope="module")
def running(site: Site) -> dict[str, Job]:
    """A job of alice on each worker, and one of bob on the first: they run while services fail and are upgraded."""
    wishes = {"alice": "worker1", "bob": "worker1", "alice too": "worker2"}
    return {name: start(site, name.split()[0], worker) for name, worker in wishes.items()}


def test_a_controller_is_installed_and_ready(site: Site) -> None:
    machine, page = site["controller"], site.page("controller")
    site.copy("lark-controller", "controller")
    machine.run(page.block("apt install ./lark-controller_*.deb  "))
    machine.run(page.block("getent hosts"), timeout=5)
    machine.run(page.block("lark setup --name"))
    machine.run(page.block("lark check"))
    answer = machine.run(page.block("systemctl enable lark-controller")).stdout
    assert json.loads(answer)["ready"] is True
    machine.run(page.block("export LARK_URL"))


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_installed_while_its_startd_is_off(site: Site, name: str) -> None:
    machine, page = site[name], site.page("worker")
    machine.run(page.block("condor_off -startd -peaceful"))
    site.copy("lark-worker", name)
    machine.run(page.block("apt install ./lark-worker_*.deb  "))
    # One comes by Lark's token, and the other by HTCondor's. In these containers Open vSwitch runs in user space; the
    # other's bridge is made beforehand.
    if name == "worker1":
        token = site["controller"].run(f"{site.operator}\n{page.block('lark join add')}").stdout.strip()
        kind = "--interface eth0 --kind ovs-userspace --wait 15"
        command = page.block("lark-worker setup", ("--interface eth0", kind), ("TOKEN", token))
    else:
        wish = (("--interface eth0", ""), ("BEGINNINGIDTOKEN", htcondors(site, name)))
        command = site.page("idtokens").block("lark-worker setup", *wish)
        bridge(site, name)
    said = machine.run(command).stdout
    assert "joined https://" in said, said
    # The example of the package keeps nothing that the controller gives from the worker.
    assert "kept as it is there" not in said, said
    own = (("192.0.2.11/24", f"{BY_NAME[name].address}/16"), ("192.0.2.1\n", f"{ROUTER}\n"))
    machine.run(page.block("cat > /etc/systemd/network/05-lark-card.network", *own))
    again = machine.run(command).stdout
    assert "has joined https://" in again, again
    machine.run(site.page("base-flows").block("lark-base-flows --check"))
    machine.run(site.page("open-vswitch").block("ovs-vsctl --columns"))
    machine.run(page.block("systemctl restart lark-worker"))
    machine.run(page.block("condor_on -startd"))
    wait_until(lambda: name in in_pool(site), 60, f"{name} is in the pool")


def htcondors(site: Site, name: str) -> str:
    """A token by which a worker joins, made by condor_token_create."""
    controller, central, page = site["controller"], site["central"], site.page("idtokens")
    controller.run(page.block("install -d -o lark", ("pool.example", DOMAIN)))
    folder = Path(f"/proc/{central.leader}/root/root/lark-keys")
    folder.mkdir(0o700)
    shutil.copy(f"/proc/{controller.leader}/root/etc/lark/condor-keys/lark", folder)
    folder.joinpath("lark").chmod(0o600)
    beginning = controller.run(page.block('echo "lark1.')).stdout.strip()
    # The same command makes workers' tokens and users'.
    wish = ((f"worker1.{DOMAIN}", site[name].host), ("pool.example", DOMAIN))
    block = "_CONDOR_SEC_PASSWORD_DIRECTORY=/root/lark-keys condor_token_create -key lark"
    secret = central.run(page.block(f"{block} \\", *wish)).stdout.strip()
    alice = central.run(page.block(f"{block} -identity alice", ("pool.example", DOMAIN))).stdout.strip()
    jobs = (
        f"export LARK_URL=https://{controller.host}:8443 LARK_CA=/etc/lark/ca.pem LARK_TOKEN={alice}; lark jobs --json"
    )
    assert json.loads(controller.run(jobs).stdout) == []
    return beginning + secret


def bridge(site: Site, name: str) -> None:
    """Make a worker's bridge, with base flows that outlive a restart."""
    machine, page, base = site[name], site.page("open-vswitch"), site.page("base-flows")
    number = name.removeprefix("worker")
    machine.run(page.block("lark-worker bridge make br0 eth0 --kind ovs-userspace", ("000e1", f"000e{number}")))
    machine.run(base.block("printf 'LARK_BRIDGE"))


def test_an_access_point_is_installed_with_jobs_in_its_queue(site: Site) -> None:
    central = site["central"]
    before = "printf 'executable = /bin/true\\nhold = true\\nqueue\\n' > before.sub; condor_submit -terse before.sub"
    cluster = central.run(before, user="alice").stdout.partition(".")[0]
    site.copy("lark-access-point", "central")
    central.run(site.page("jobs").block("apt install ./lark-access-point"))
    central.run(site.page("worker").block("apt install ./lark-access-point"))
    assert central.run(f"condor_q {cluster} -af WantJobNetworking").stdout.strip() == "false"
    central.run(f"condor_rm {cluster}")


def test_users_write_commands_and_nonsense_is_refused_at_submission(site: Site) -> None:
    """A few of them: the lab has all."""
    central, page = site["central"], site.page("jobs")
    commands = {
        "network_vlan": "42", "external_address": "true", "external_ports": "tcp/80, udp/5000-5010, icmp",
        "external_name": "web", "mpi_bandwidth": "ring 40", "scitag_activity": "Analysis",
    }  # fmt: skip
    names = (
        "RequestedVLAN", "RequestExternalAddress", "ExternalPorts", "ExternalName", "RequestMpiBandwidth",
        "ScitagActivity",
    )  # fmt: skip

    def submitted(lines: Mapping[str, str], *, check: bool = True) -> str:
        text = "".join(f"{name} = {value}\n" for name, value in lines.items())
        submit = "cat > commands.sub; condor_submit -terse commands.sub 2>&1"
        beginning = "executable = /bin/true\nhold = true\n"
        return central.run(submit, user="alice", stdin=f"{beginning}{text}queue\n", check=check).stdout

    cluster = submitted(commands).partition(".")[0]
    shown = central.run(f"condor_q {cluster} -af:, {' '.join(names)}", user="alice").stdout.strip()
    assert re.split(", *", shown) == ["42", "true", "tcp/80", "udp/5000-5010", "icmp", "web", "ring 40", "Analysis"]
    central.run(f"condor_rm {cluster}")
    for name, value in {"request_bandwidth": "22.5", "external_ports": "http", "scitag_activity": "0"}.items():
        said = submitted({name: value}, check=False)
        assert f"ERROR: {name} is " in said, said
    assert page.block("ERROR: request_bandwidth").strip() in submitted({"request_bandwidth": "1.5"}, check=False)


def test_the_check_misses_nothing(site: Site) -> None:
    for name in WORKERS:
        said: list[str] = []

        def misses_nothing(name: str = name, said: list[str] = said) -> bool:
            said[:] = site[name].run(site.page("worker").block("lark-worker check")).stdout.splitlines()
            # Kernels may lack fair queueing, which no job needs.
            return all(line.startswith(("ok ", "warning  kernel: fair queueing")) for line in said)

        # The service asks a startd that has just started again within half a minute.
        wait_until(misses_nothing, 60, f"lark-worker check on {name} finds all", 2)


def test_a_job_sees_its_own_address_alone(site: Site) -> None:
    central = site["central"]
    central.run(site.page("worker").block("cat > net.sub <<END"), user="alice")
    said = central.run("condor_wait -wait 90 net.log && cat net.out", user="alice").stdout
    assert re.findall(r"(?m)^\d+: (\w+)", said) == ["lo", "eth0"], said
    assert "inet 10.64." in said, said
    assert "10.0.0." not in said, said


def test_jobs_of_two_users_are_apart(site: Site, running: dict[str, Job]) -> None:
    alice, near, bob = running["alice"], running["alice too"], running["bob"]
    assert alice.reaches(near.address)
    assert alice.reaches("10.64.0.1")
    assert not alice.reaches(bob.address)
    assert not bob.reaches(alice.address)
    site["controller"].run(site.page("controller").block("export LARK_URL"))


def test_users_see_what_jobs_use_and_why_they_wait(site: Site, running: dict[str, Job]) -> None:
    central, page = site["central"], site.page("jobs")

    def asked(beginning: str, cluster: str) -> str:
        return central.run(page.block(beginning, ("JOB", cluster)), user="alice").stdout

    lines = central.run(page.block("condor_q -print-format"), user="alice").stdout.splitlines()
    shown = {line.split()[0]: line.split()[3] for line in lines if re.match(r"\d+\.0 ", line)}
    for job in (running["alice"], running["alice too"]):
        assert shown[f"{job.cluster}.0"] == site[job.worker].host[:18], lines
    slots = central.run(page.block("condor_status -print-format")).stdout
    taken = [line.split() for line in slots.splitlines() if "Claimed" in line]
    assert len(taken) >= len(running), slots
    assert {line[2] for line in taken} == {"ovs_bridge"}, slots

    # Nobody has this VLAN, and the first policy gives nobody an external address.
    waits, refused = (
        central.run(
            "cat > wish.sub; condor_submit -terse wish.sub",
            user="alice",
            stdin=f"executable = /bin/true\n{wish}\nlog = wish.log\nqueue\n",
        ).stdout.partition(".")[0]
        for wish in ("network_vlan = 42", "external_address = true")
    )
    held = f"condor_q {refused} -af JobStatus"
    wait_until(lambda: central.run(held).stdout.strip() == "5", 60, "the job without an external address is held", 1)
    assert "Lark refused this job:" in asked("condor_q -hold JOB", refused)
    assert "VLAN" in asked("condor_q -better-analyze JOB", waits)
    central.run(f"condor_rm {waits} {refused}")


@pytest.mark.parametrize("machine", ["controller", "worker1"])
def test_systemd_starts_a_killed_service_again_and_the_job_goes_on(
    site: Site, running: dict[str, Job], machine: str
) -> None:
    unit = "lark-controller" if machine == "controller" else "lark-worker"
    show = f"systemctl show -P MainPID {unit}"
    before = site[machine].run(show).stdout.strip()
    site[machine].run(f"kill -9 {before}")
    back = f'pid=$({show}); [ "$pid" -gt 0 ] && [ "$pid" != {before} ] && systemctl is-active {unit}'
    wait_until(lambda: site[machine].run(back, check=False).returncode == 0, 60, f"{unit} is started again")
    assert site[machine].run(f"systemctl show -P Type {unit}").stdout.strip() == "notify"
    go_on(running)


def go_on(running: dict[str, Job]) -> None:
    """Fail unless the jobs run on, are enforced, and still are together and apart as before."""
    alice, near, bob = running["alice"], running["alice too"], running["bob"]
    wait_until(lambda: all(job.is_enforced() for job in running.values()), 60, "all jobs are enforced")
    assert alice.reaches(near.address)
    assert not alice.reaches(bob.address)


def test_an_upgrade_while_jobs_run(site: Site, running: dict[str, Job]) -> None:
    """The controller first, as the pages say; then the workers."""
    for machine, package in (("controller", "lark-controller"), *((name, "lark-worker") for name in WORKERS)):
        show = f"systemctl show -P MainPID {package}"
        before = site[machine].run(show).stdout
        site.copy(package, machine, build=1)
        page = site.page("controller" if machine == "controller" else "worker")
        site[machine].run(page.block(f"apt install ./{package}_*.deb"))
        version = site[machine].run(f"dpkg-query -Wf '${{Version}}' {package}").stdout
        assert version == f"{__version__}-2~{distribution(machine)}"
        assert site[machine].run(show).stdout != before
        go_on(running)
    wait_until(lambda: all(each["in_sync"] for each in site.lark("switches")), 60, "the switches are in sync")


def test_a_worker_that_restarts_runs_jobs_without_anybody(site: Site, running: dict[str, Job]) -> None:
    for name in ("alice", "bob", "alice too"):
        running.pop(name).remove()
    machine = site["worker2"]
    machine.restart()
    for unit in ("lark-worker", "lark-base-flows"):
        check = f"systemctl is-active {unit}"
        wait_until(lambda check=check: machine.run(check, check=False).returncode == 0, 60, f"{unit} runs")  # type: ignore[misc]
    wait_until(lambda: "worker2" in in_pool(site), 90, "worker2 is in the pool")
    job = start(site, "bob", "worker2")
    assert job.reaches("10.64.0.1")
    job.remove()


def test_a_job_behind_nat_reaches_other_machines(site: Site) -> None:
    machine = site["worker2"]
    machine.write("/etc/lark/worker.env", site.page("worker").block("LARK_WORKER_NAT_NETWORKS"), 0o600, append=True)
    machine.write("/etc/condor/config.d/60-site.conf", 'NetworkType = "nat"\n')
    machine.run("systemctl restart lark-worker; condor_reconfig")
    wait_until(lambda: machine.run("lark-worker check", check=False).returncode == 0, 60, "the check misses nothing", 2)
    job = start(site, "alice", "worker2")
    assert job.address.startswith("10.255."), job
    assert job.reaches(BY_NAME["controller"].address)
    job.remove()


def test_a_worker_without_the_package_runs_jobs_as_before(site: Site) -> None:
    machine = site["worker1"]
    change = ("apt remove", "systemctl is-enabled lark-worker; apt remove")
    machine.run(
        site.page("worker").block("condor_off -startd -peaceful\nlark-worker bridge undo br0", change), timeout=180
    )
    wait_until(lambda: "worker1" in in_pool(site), 60, "worker1 is in the pool")
    lines = f'requirements = Machine == "{machine.host}"\nlog = after.log\noutput = after.out\nqueue\n'
    submit = "cat > after.sub; condor_submit after.sub; condor_wait -wait 90 after.log; cat after.out"
    text = "executable = /bin/sh\ntransfer_executable = false\narguments = \"-c 'ip -o -4 address'\"\n" + lines
    said = site["central"].run(submit, user="alice", stdin=text).stdout
    assert "10.0.0.11/16" in said, said


def test_an_access_point_without_the_package_is_as_before(site: Site) -> None:
    central = site["central"]
    central.run("apt remove lark-access-point")
    capable = "condor_submit -capabilities"
    wait_until(
        lambda: "network_vlan" not in central.run(capable, user="alice").stdout, 30, "the schedd has its own commands"
    )
    lines = "executable = /bin/true\nhold = true\nqueue\n"
    submit = "cat > after.sub; condor_submit -terse after.sub"
    cluster = central.run(submit, user="alice", stdin=lines).stdout.partition(".")[0]
    assert central.run(f"condor_q {cluster} -af WantJobNetworking").stdout.strip() == "undefined"
    central.run(f"condor_rm {cluster}")


def test_every_block_of_the_pages_is_run_or_has_a_reason(site: Site) -> None:
    for page in site.pages.values():
        left = set(page.unused()) - set(NOT_RUN.get(page.name, {}))
        assert not left, f"{page.name}: neither run nor in NOT_RUN: {sorted(left)}"
        gone = set(NOT_RUN.get(page.name, {})) - set(page.unused())
        assert not gone, f"{page.name}: run, or not there, and in NOT_RUN: {sorted(gone)}"
