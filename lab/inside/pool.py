"""The pool, from inside the lab: ``python3 -m lab.inside.pool start|on NAME|off NAME|status|logs``.

Standard library only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import sys
import time
from pathlib import Path

from lab.inside import lark, machines, pki, services
from lab.inside.topology import BY_NAME, MACHINES, Machine
from lab.run import LabError, run

LOGS = Path("/lark/run/logs")
LOG_DIRECTORIES = ("var/log", "var/lib/misc")
WORKERS = tuple(machine.name for machine in MACHINES if "execute" in machine.roles)
POOL_TIMEOUT = 120


def options_from_environment() -> services.Options:
    """``LAB_USERSPACE`` and ``LAB_KIND``, as the lab was entered with."""
    # Debian's User Mode Linux is built without CONFIG_NF_CONNTRACK_ZONES, and Open vSwitch's ct needs it.
    return services.Options(userspace=os.environ.get("LAB_USERSPACE") == "1", zones=os.environ.get("LAB_KIND") != "uml")


def start() -> None:
    """Switch every machine on, all at once, and wait until the collector has both workers and Lark is ready."""
    began = time.monotonic()
    machines.make_segments()
    pki.make([machine.name for machine in MACHINES if machine.bridge or "controller" in machine.roles])
    for machine in MACHINES:
        machines.power_on(machine)
    print(f"pool: {len(MACHINES)} machines are on after {time.monotonic() - began:.1f} s", flush=True)
    options = options_from_environment()
    with concurrent.futures.ThreadPoolExecutor(len(MACHINES)) as threads:
        for future in [threads.submit(services.boot, machine, options) for machine in MACHINES]:
            future.result()
    if not options.zones:
        print("pool: Open vSwitch has no ct here (no conntrack zones): the policy is without one-way connectivity")
    print(f"pool: their services are started after {time.monotonic() - began:.1f} s", flush=True)
    wait_for_workers(set(WORKERS))
    print(f"pool: {' and '.join(WORKERS)} are in the pool after {time.monotonic() - began:.1f} s", flush=True)
    lark.operator()
    lark.wait_until_ready(MACHINES)
    print(f"pool: the controller and all switches are in sync after {time.monotonic() - began:.1f} s", flush=True)


def workers_in_pool() -> set[str]:
    """The collector's workers of the moment."""
    result = run(["on", "central", "condor_status", "-af", "Machine"], timeout=30, check=False)
    return {line.split(".")[0] for line in result.stdout.split()}


def wait_for_workers(wanted: set[str]) -> None:
    """Wait until the collector has ``wanted``. Raises LabError after two minutes."""
    deadline = time.monotonic() + POOL_TIMEOUT
    while not wanted <= (known := workers_in_pool()):
        if time.monotonic() > deadline:
            raise LabError(f"{', '.join(sorted(wanted - known))}: not in the pool after {POOL_TIMEOUT} s")
        time.sleep(0.3)


def on(name: str) -> None:
    """Switch one machine on again, start what it starts at boot, and wait until Lark is ready there."""
    machine = _machine(name)
    machines.power_on(machine)
    services.boot(machine, options_from_environment())
    lark.wait_until_ready(each for each in MACHINES if each is machine or "controller" in machine.roles)


def _machine(name: str) -> Machine:
    if name not in BY_NAME:
        raise LabError(f"{name}: no such machine; there are {', '.join(BY_NAME)}")
    return BY_NAME[name]


def off(name: str) -> None:
    """Cut one machine's power."""
    machines.power_off(_machine(name))


def status() -> dict[str, object]:
    """The machines that are on, and the workers that are in the collector."""
    return {
        "on": [machine.name for machine in MACHINES if (machines.DIRECTORY / machine.name / "pid").exists()],
        "workers": sorted(workers_in_pool()),
    }


def logs() -> None:
    """Copy every machine's logs and console to the run's directory, where they outlive the lab."""
    for machine in MACHINES:
        home = machines.DIRECTORY / machine.name
        target = LOGS / machine.name
        for directory in LOG_DIRECTORIES:
            if (home / "upper" / directory).is_dir():
                shutil.copytree(home / "upper" / directory, target / directory, dirs_exist_ok=True, copy_function=_copy)
        if (home / "console.log").exists():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(home / "console.log", target / "console.log")
    for command in (["condor_status", "-long"], ["condor_q", "-all", "-long"]):
        result = run(["on", "central", *command], timeout=30, check=False)
        (LOGS / f"{command[0]}.txt").write_text(result.stdout + result.stderr)


def _copy(source: str, target: str) -> None:
    """Log files only: no device, socket or whiteout of the overlay."""
    if Path(source).is_file():
        shutil.copyfile(source, target)


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="pool", description=__doc__)
    parser.add_argument("action", choices=("start", "on", "off", "status", "logs"))
    parser.add_argument("machine", nargs="?", default="")
    arguments = parser.parse_args()
    try:
        match arguments.action:
            case "start":
                start()
            case "on":
                on(arguments.machine)
            case "off":
                off(arguments.machine)
            case "status":
                print(json.dumps(status()))
            case _:
                logs()
    except LabError as error:
        print(f"pool: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
