"""A Job as a row and a row as a Job. A start reads 200,000 rows: columns go by position, equal values are shared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final

from sqlalchemy import ColumnElement, CursorResult, Row, func, select

from lark_common.runs import AddressType, NetworkType, RunKey
from lark_common.shared_texts import LONGEST, shared
from lark_common.turns import by_portions
from lark_controller.jobs.job import SHARED_SIZE, Facts, Job, JobState, Standing, job_of, shared_facts
from lark_controller.store.schema import leases, runs

_NAMES: Final = (
    "number", "global_job_id", "started", "slot", "id", "owner", "user_name", "group_name", "cluster", "proc", "host",
    "network_type", "address_type", "ipv4", "ipv6", "ipv4_block", "ipv6_block", "datapath", "port", "mac", "vlan",
    "bandwidth", "inbound", "outbound", "state", "reason", "lease_until", "created_at", "facts",
    "quarantine", "vouched",
)  # fmt: skip

# A live run's lease stands apart; that of any other is the one that it was registered with.
_LEASE: Final = func.coalesce(
    select(leases.c.lease_until).where(leases.c.number == runs.c.number).correlate(runs).scalar_subquery(),
    runs.c.lease_until,
).label("lease_until")


def columns_with(lease: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    """The columns of a job, with ``lease`` as the end of its lease."""
    return tuple(lease if name == "lease_until" else runs.c[name] for name in _NAMES)


JOB_COLUMNS: Final = columns_with(_LEASE)

# Rows that are taken from the database at a time where a page of them is read.
_AT_A_TIME: Final = 50

_STATE: Final = _NAMES.index("state")
_REASON: Final = _NAMES.index("reason")
_STATES: Final = {state.value: state for state in JobState}
_NETWORK_TYPES: Final = {kind.value: kind for kind in NetworkType}
_ADDRESS_TYPES: Final = {kind.value: kind for kind in AddressType}
# Without a call of Python, as of all that is made for each row.
_run_key: Final[Callable[[Iterable[Any]], RunKey]] = partial(tuple.__new__, RunKey)


def job_from(row: Sequence[Any]) -> Job:
    """The job in a row of :data:`JOB_COLUMNS`."""
    return _job(row, _STATES[row[_STATE]], shared(row[_REASON]))


def live_job_from(row: Sequence[Any]) -> tuple[Job, Standing]:
    """The job in a row of :data:`JOB_COLUMNS` as live jobs are held, and how far it was."""
    return _job(row, JobState.REGISTERING, ""), _standing(row[_STATE], row[_REASON])


def _job(row: Sequence[Any], state: JobState, reason: str) -> Job:
    (
        number, global_job_id, started, slot, job_id, owner, user, group, cluster, proc, host,
        network_type, address_type, ipv4, ipv6, ipv4_block, ipv6_block, datapath, port, mac, vlan,
        bandwidth, inbound, outbound, _, _, lease_until, created, facts, quarantine, vouched,
    ) = row  # fmt: skip
    if len(owner) + len(user) + len(group) <= LONGEST:
        owner, user, group = _latest_names(owner, user, group)
    return job_of(
        number,
        _run_key((global_job_id, started, slot)),
        job_id,
        owner,
        user,
        group,
        cluster,
        proc,
        shared(host),
        _NETWORK_TYPES[network_type],
        _ADDRESS_TYPES[address_type],
        None if ipv4 is None else IPv4Address(inet_pton(AF_INET, ipv4)),
        None if ipv6 is None else IPv6Address(inet_pton(AF_INET6, ipv6)),
        None if ipv4_block is None else _ipv4_network(ipv4_block),
        None if ipv6_block is None else _ipv6_network(ipv6_block),
        None if datapath is None else _datapath(datapath),
        None if port is None else shared(port),
        mac,
        vlan,
        bandwidth,
        inbound,
        outbound,
        state,
        reason,
        lease_until,
        created,
        facts_from(facts),
        shared(quarantine) if quarantine else "",
        vouched,
        (),
        (),
    )


@lru_cache(maxsize=16_384)
def _latest_names(owner: str, user: str, group: str) -> tuple[str, str, str]:
    """The names of whom a job is of, each shared with all else that has it."""
    return shared(owner), shared(user), shared(group)


def _standing(state: str, reason: str) -> Standing:
    """A standing; equal ones are one object, if their reasons are short."""
    return _latest_standing(state, reason) if len(reason) <= LONGEST else Standing(_STATES[state], reason)


@lru_cache(maxsize=4_096)
def _latest_standing(state: str, reason: str) -> Standing:
    return Standing(_STATES[state], reason)


def columns_of(job: Job) -> dict[str, Any]:
    """The values of a job's columns, but for ``number``, ``ended_at`` and ``facts_for``."""
    return {
        "id": job.id,
        "global_job_id": job.run.global_job_id,
        "started": job.run.started,
        "slot": job.run.slot,
        "owner": job.owner,
        "user_name": job.user,
        "group_name": job.group,
        "cluster": job.cluster,
        "proc": job.proc,
        "host": job.host,
        "network_type": job.network_type.value,
        "address_type": job.address_type.value,
        "ipv4": text_or_none(job.ipv4),
        "ipv6": text_or_none(job.ipv6),
        "ipv4_block": text_or_none(job.ipv4_block),
        "ipv6_block": text_or_none(job.ipv6_block),
        # A datapath id has 64 bits without a sign, which no integer column of both databases holds.
        "datapath": None if job.datapath is None else f"{job.datapath:016x}",
        "port": job.port,
        "mac": job.mac,
        "vlan": job.vlan,
        "bandwidth": job.bandwidth,
        "inbound": job.inbound,
        "outbound": job.outbound,
        "state": job.state.value,
        "live": job.live,
        "reason": job.reason,
        "lease_until": job.lease_until,
        "created_at": job.created,
        "facts": facts_text(job.facts),
        "quarantine": job.quarantine,
        "vouched": job.vouched,
    }


def text_or_none(value: object | None) -> str | None:
    """The canonical text of an address or network."""
    return None if value is None else str(value)


def facts_text(facts: Facts) -> str:
    """Facts as compact JSON; jobs without facts take two characters."""
    if not facts.job and not facts.machine:
        return "[]"
    return json.dumps([facts.job, facts.machine], separators=(",", ":"), ensure_ascii=False)


def facts_from(text: str) -> Facts:
    """The facts in a row; equal texts give one object, if they are short."""
    return _latest_facts(text) if len(text) <= SHARED_SIZE else _facts_from(text)


@lru_cache(maxsize=65_536)
def _latest_facts(text: str) -> Facts:
    return _facts_from(text)


def _facts_from(text: str) -> Facts:
    if text == "[]":
        return Facts()
    job, machine = json.loads(text)
    found = Facts(
        tuple((shared(name), shared(value)) for name, value in job),
        tuple((shared(name), shared(value)) for name, value in machine),
    )
    return shared_facts(found)


@lru_cache(maxsize=65_536)
def _ipv4_network(text: str) -> IPv4Network:
    return IPv4Network(text)


@lru_cache(maxsize=65_536)
def _ipv6_network(text: str) -> IPv6Network:
    return IPv6Network(text)


@lru_cache(maxsize=16_384)
def _datapath(text: str) -> int:
    return int(text, 16)


def read_by_portions(result: CursorResult[Any]) -> list[Row[Any]]:
    """The rows of a page, in portions between which others go ahead."""
    return [row for part in by_portions(result.partitions(_AT_A_TIME)) for row in part]
