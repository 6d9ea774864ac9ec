"""Runs for the tests of the store."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

from lark_controller.jobs import AddressType, Facts, Job, NetworkType, RunKey

NOW = 1_700_000_000.0
LEASE = NOW + 600


def a_run(number: int = 1, started: int = 1000, slot: str | None = None, **changes: Any) -> Job:
    """A run whose every attribute follows from ``number``; 0 to 9 share a group, a block and a host."""
    run = RunKey(f"schedd.example#{number}.0#{started}", started, slot or f"slot1_{number}@worker{number // 10}")
    job = Job(
        number=0,
        run=run,
        id=run.id,
        owner=f"user{number % 3}",
        user=f"user{number % 3}@example",
        group=f"group{number // 10}",
        cluster=number,
        proc=0,
        host=f"worker{number // 10}",
        ipv4=IPv4Address("10.64.0.0") + number,
        ipv6=IPv6Address("2001:db8:64::") + number,
        port=f"lark{number}",
        datapath=number + 1,
        mac="02:00:00:00:00:01",
        lease_until=LEASE,
        facts=Facts((("owner", f'"user{number % 3}"'),)),
    )
    return replace(job, **changes)


# Every column filled, with values at the edge of what the types can hold.
FULL = a_run(
    7,
    started=2**40,
    address_type=AddressType.CONTROLLER,
    network_type=NetworkType.OVS_BRIDGE,
    owner="ålïce 🐦",
    user="ålïce@例え.example",
    group="group_ñ.β",
    cluster=2**40,
    proc=2**33,
    ipv4_block=IPv4Network("10.64.0.0/28"),
    ipv6_block=IPv6Network("2001:db8:64::/124"),
    datapath=2**64 - 1,
    vlan=4094,
    bandwidth=0.1,
    inbound=False,
    outbound=True,
    reason="worker1 is away",
    facts=Facts((("owner", '"ålïce 🐦"'), ("jobprio", "10")), (("machine", '"w\\"1"'),)),
)


def at_once(program: str, url: str, count: int, cwd: Path | None = None) -> list[str]:
    """What so many processes print that run a program on a database, each from its ``sys.stdin.readline()`` on at the
    same moment; it prints ``ready`` first."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * count, said
    return [output for output, _ in said]
