from __future__ import annotations

from ipaddress import ip_interface
from pathlib import Path

import pytest

from lab import kernel, rootfs, settings
from lab.inside import condor, lark, topology
from lab.run import LabError
from lark_controller.policies.file import load


def test_every_setting_can_come_from_the_environment() -> None:
    given = {
        "LAB_CACHE": "/c",
        "LAB_RUNS": "/r",
        "LAB_MIRROR": "http://m.test/debian",
        "LAB_KIND": "uml",
        "LAB_MEMORY": "2048",
    }
    read = settings.from_environment(given)
    assert (read.cache, read.runs, read.mirror) == (Path("/c"), Path("/r"), "http://m.test/debian")
    assert (read.kind, read.memory_mb, read.suite) == ("uml", 2048, "forky")


@pytest.mark.parametrize(("name", "value"), [("LAB_KIND", "docker"), ("LAB_MEMORY", "2G"), ("LAB_MEMORY", "64")])
def test_a_wrong_setting_says_what_is_accepted(name: str, value: str) -> None:
    with pytest.raises(LabError, match=name):
        settings.from_environment({name: value})


def test_native_where_the_kernel_has_all() -> None:
    assert kernel.choose("auto", lambda feature: True).kind == "native"


def test_what_the_kernel_lacks_is_the_reason_for_the_other_kernel() -> None:
    choice = kernel.choose("auto", lambda feature: feature != "openvswitch")
    assert choice.kind == "uml"
    assert "openvswitch" in choice.reason


def test_native_is_refused_where_it_cannot_work() -> None:
    with pytest.raises(LabError, match="sch_netem"):
        kernel.choose("native", lambda feature: feature != "sch_netem")


def test_an_old_package_is_refused() -> None:
    with pytest.raises(LabError, match=r"user-mode-linux 6\.12um1"):
        rootfs.check_versions("condor\t25.14.1+dfsg-1\nopenvswitch-switch\t4.0.0-2\nuser-mode-linux\t6.12um1\n")


def test_a_lock_becomes_constraints_without_hashes() -> None:
    lock = (
        'psycopg[binary]==3.3.9 ; python_version >= "3.11" \\\n  --hash=sha256:0\nos-ken==4.2.2 \\\n  --hash=sha256:1\n'
    )
    assert rootfs.constraints(lock) == 'psycopg==3.3.9 ; python_version >= "3.11"\nos-ken==4.2.2\n'


def test_each_python_has_its_version_of_a_distribution_in_the_constraints() -> None:
    older, newer = "numpy==2.4.6 ; python_full_version < '3.12'", "numpy==2.5.5 ; python_full_version >= '3.12'"
    assert rootfs.constraints(f"{older} \\\n  --hash=sha256:0\n{newer}\n") == f"{older}\n{newer}\n"


def test_only_the_fetching_of_packages_is_taken_from_apts_settings() -> None:
    dump = 'APT::Get "";\nAcquire "";\nAcquire::http::Proxy "http://p.test:3128";\nAcquire::Check-Date "false";\n'
    assert rootfs.apt_options(dump) == ['Acquire::http::Proxy "http://p.test:3128";', 'Acquire::Check-Date "false";']


def test_no_address_of_the_lab_is_used_twice() -> None:
    groups = [nic.addresses for machine in topology.MACHINES for nic in machine.nics]
    groups += [machine.bridge.addresses for machine in topology.MACHINES if machine.bridge]
    groups.append(topology.OPERATOR)
    addresses = [ip_interface(address).ip for group in groups for address in group]
    assert len(addresses) == len(set(addresses))


def test_cables_have_names_that_the_kernel_takes_and_that_differ() -> None:
    names = [topology.cable(machine, nic) for machine in topology.MACHINES for nic in machine.nics if nic.segment]
    assert all(0 < len(name) <= 15 for name in names)
    assert len(names) == len(set(names))


def test_each_machine_of_the_pool_names_itself_and_the_same_collector() -> None:
    pool = [machine for machine in topology.MACHINES if condor.is_in_pool(machine)]
    configs = {machine.name: condor.config(machine).splitlines() for machine in pool}
    assert set(configs) == {"central", "worker1", "worker2"}
    for machine in pool:
        assert f"NETWORK_INTERFACE = {machine.address}" in configs[machine.name]
        assert f"CONDOR_HOST = central.{topology.DOMAIN}" in configs[machine.name]
    assert condor.SITE.endswith("lark-bandwidth eth0 1000\n")


def test_the_policy_of_the_lab_is_right_with_and_without_what_a_kernel_may_lack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lark, "SOURCE", settings.SOURCE)
    both = [load(lark.policy(connectivity=wanted, queues=not wanted)) for wanted in (True, False)]
    assert [bool(policy.connectivities) for policy in both] == [True, False]
    assert [bool(policy.bandwidths) for policy in both] == [False, True]
    for policy in both:
        assert {spec.name: f"{datapath:016x}" for datapath, spec in policy.switches.items()} == {
            "core1": topology.CORE.bridge and topology.CORE.bridge.datapath_id,
            **{
                name: bridge.datapath_id for name in ("worker1", "worker2") if (bridge := topology.BY_NAME[name].bridge)
            },
        }


def test_user_mode_linux_has_real_time_priority_only_beside_another_processor() -> None:
    """One that has the only processor would stop all other programs, those that end the lab among them."""
    assert kernel.real_time("uml", processors=1) == ()
    assert kernel.real_time("native", processors=8) == ()
    assert kernel.real_time("uml", processors=8) in ((), kernel.REAL_TIME)


def test_a_machine_that_permits_no_real_time_priority_runs_the_lab_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "REAL_TIME", ("false",))
    assert kernel.real_time("uml", processors=8) == ()
    monkeypatch.setattr(kernel, "REAL_TIME", ("/no/such/program",))
    assert kernel.real_time("uml", processors=8) == ()
