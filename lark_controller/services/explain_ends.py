"""The two ends of the question whether a packet reaches its destination: addresses, and the jobs behind them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import MappingProxyType

from lark_common.errors import AdError, NotFoundError
from lark_common.runs import Address, NetworkType
from lark_common.worker_rules import RULED, WorkerRules
from lark_controller.api.switches import Step
from lark_controller.flows.desired import Desired
from lark_controller.flows.external import pool_ports
from lark_controller.flows.placement import Placed
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.external import External, Opening
from lark_controller.jobs.job import Directory, Job
from lark_controller.services.job_names import live_names


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of the question: addresses of one version, and the jobs behind them.

    ``rules`` are those of the workers, by host, that enforce policy for one of the jobs themselves. ``inward`` is the
    external address of the receiving job where that is what is called, ``outward`` that of the sending one. ``closed``
    are those, by the job's number, that a switch lacks, with the reasons. ``gateway`` is the reason why no Linux
    gateway has the translation yet (``""``: one has), None where cores translate or nothing is translated. ``behind``
    are the hosts of ``rules`` that have not confirmed these yet. ``entries`` are the WAN ports by which packets for the
    external address that is called may come, and ``shut`` the others, both in words and empty where there are none.
    """

    src: Address
    dst: Address
    src_job: Placed | None
    dst_job: Placed | None
    rules: Mapping[str, WorkerRules]
    inward: External | None = None
    outward: External | None = None
    closed: Mapping[int, Mapping[Address, str]] = field(default_factory=lambda: MappingProxyType({}))
    gateway: str | None = None
    behind: frozenset[str] = frozenset()
    entries: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()

    def called(self, job: Job, owner: str | None = None) -> str:
        """CLUSTER.PROC of the job at an end, with its access point where the job at the other one (of this owner) has
        the same number."""
        jobs = (placed.job for placed in (self.src_job, self.dst_job) if placed is not None)
        return live_names([job, *(each for each in jobs if owner in (None, each.owner))])[job.id]

    @property
    def translated(self) -> Placed | None:
        """The job whose external IPv4 address is on the way."""
        if self.src.version == 6:
            return None
        return self.dst_job if self.inward is not None else self.src_job if self.outward is not None else None

    def until_confirmed(self, owner: str | None = None) -> str:
        """The words for a worker that may have the rules of before (``""``: none); with ``owner`` that of a job of this
        user alone."""
        jobs = [placed.job for placed in (self.src_job, self.dst_job) if placed is not None]
        late = [job.host for job in jobs if job.host in self.behind and owner in (None, job.owner)]
        return f" (until worker {late[0]} has these rules, those of before hold there)" if late else ""

    def where_it_comes_by(self, owner: str | None = None) -> str:
        """The words where a call of an external address passes by some WAN ports alone (``""``: by all); to an
        ``owner`` without the names of switches."""
        if not self.shut:
            return ""
        if owner is not None:
            return ", where it comes by the WAN port where its pool is; at others it is dropped"
        return f", where it comes by {', '.join(self.entries)}: at {', '.join(self.shut)} it is dropped"

    @property
    def inside(self) -> Address:
        """The destination that the switches see: behind a Linux gateway the job's own address."""
        own = None if self.gateway is None or self.inward is None else self.translated
        return self.dst if own is None or own.job.ipv4 is None else own.job.ipv4

    @property
    def opening(self) -> Opening | None:
        """The opening that a packet shall pass by; None where no external address is concerned, or all is open."""
        external = self.inward or self.outward
        return next((each for each in external.openings if each.protocol != "any"), None) if external else None


def ends_of(
    desired: Desired, directory: Directory, src: str, dst: str, untranslated: Callable[[int], str] = lambda _: ""
) -> Ends:
    """The ends that two texts name, each an address or a live job's id; on the loop's thread, which alone may ask for
    workers' rules. ``untranslated`` is the reason why no Linux gateway has a job's translation yet, by the job's
    number. Raises NotFoundError, AdError."""
    first, second = _end_of(directory, src), _end_of(directory, dst)
    for version in (4, 6):
        pair = [[each for each in addresses if each.version == version] for addresses, _ in (first, second)]
        if pair[0] and pair[1]:
            source, target = (_placed(desired, directory, job) for _, job in (first, second))
            ruled = {p.job.host for p in (source, target) if p is not None and p.job.network_type in RULED}
            rules = {host: desired.worker_rules(host) for host in ruled}
            inward = _external_of(target, pair[1][0]) if target is not None else None
            leaves = source is not None and target is None and not is_local(desired, pair[1][0])
            # An IPv6 address that is open is the job's own, and leaves as it is.
            translated = source.job.external if version == 4 and leaves and source is not None else ()
            outward = next((each for each in translated if each.address.version == 4), None)
            numbers = [placed.job.number for placed in (source, target) if placed is not None]
            closed = {number: why for number in numbers if (why := directory.closed.get(number))}
            ends = Ends(_own(source, pair[0][0]), pair[1][0], source, target, rules, inward, outward, closed)
            job = ends.translated
            if job is None or next(desired.translating(job), None) is not None:
                return _with_entries(desired, ends)
            return replace(ends, gateway=untranslated(job.job.number))
    one, other = (text if job is None else job.called for text, (_, job) in ((src, first), (dst, second)))
    raise AdError("", f"{one} and {other} have no address of the same IP version")


def _with_entries(desired: Desired, ends: Ends) -> Ends:
    """The ends with the WAN ports by which a call may come."""
    spec = desired.policy.external
    if spec is None or ends.inward is None or ends.dst.version == 6:
        return ends
    place = spec.place(ends.inward.address)
    entries: list[str] = []
    shut: list[str] = []
    for switch in sorted(desired.switches.values(), key=lambda each: each.name):
        here = pool_ports(switch, place) if switch.is_core else ()
        for wan in switch.wan if switch.is_core else ():
            (entries if wan in here else shut).append(f"{wan.name} of {switch.name}")
    return replace(ends, entries=tuple(entries), shut=tuple(shut))


def is_local(desired: Desired, address: Address) -> bool:
    """True for an address that is not in the WAN."""
    return any(address in network for network in local_networks(desired.policy))


def _external_of(placed: Placed, address: Address) -> External | None:
    """This one of a job's external addresses; None where it is none of them."""
    return next((each for each in placed.job.external if each.address == address), None)


def _own(placed: Placed | None, address: Address) -> Address:
    """The address with which a job sends a packet that is to come from its external one."""
    if placed is None or _external_of(placed, address) is None:
        return address
    return next((each for each in placed.job.addresses if each.version == address.version), address)


def _end_of(directory: Directory, what: str) -> tuple[tuple[Address, ...], Job | None]:
    job = directory.by_id.get(what)
    if job is not None:
        if not job.addresses:
            why = "no network of its own" if job.network_type is NetworkType.NONE else "no address yet"
            raise NotFoundError(f"job {job.called} has {why}")
        return job.addresses, job
    try:
        address = ip_address(what)
    except ValueError:
        raise NotFoundError(f"{what} is neither an address nor the id of a live job") from None
    return (address,), directory.by_address.get(address) or directory.by_external.get(address)


def _placed(desired: Desired, directory: Directory, job: Job | None) -> Placed | None:
    placed = None if job is None else desired.placed.get(job.number)
    return None if placed is None else replace(placed, job=directory.now(placed.job))


def external_steps(ends: Ends, owner: str | None = None) -> list[Step]:
    """The external address of one of the two jobs on the way; with ``owner`` of a job of this user alone."""
    jobs = (placed.job for placed in (ends.src_job, ends.dst_job) if placed is not None)
    own = [job for job in jobs if owner in (None, job.owner)]
    if ends.inward is None and ends.outward is None:
        closed = (each for job in own for each in ends.closed.get(job.number, {}).items())
        shut = {address: why for address, why in closed if address.version == ends.dst.version}
        return [Step("external", f"external address {address} is closed: {why}") for address, why in shut.items()]
    opening = ends.opening
    packet = f"a packet of {opening.protocol}" if opening is not None else "a packet"
    if ends.inward is not None and ends.dst_job is not None and ends.dst_job.job in own:
        where = f" to port {opening.first}" if opening is not None and opening.first else ""
        opened = ", ".join(map(str, ends.inward.openings))
        what = "an external address of" if ends.dst.version == 4 else "open to the WAN as that of"
        sentence = f"{ends.dst} is {what} job {ends.called(ends.dst_job.job, owner)}, with {opened} open"
        on = [] if ends.gateway is None else [Step("external", f"a Linux gateway sends it on to {ends.inside}")]
        return [Step("external", f"{sentence}: explained for {packet}{where}"), *on]
    if ends.outward is not None and ends.src_job is not None and ends.src_job.job in own:
        where = f" from port {opening.first}" if opening is not None and opening.first else ""
        opened = ", ".join(map(str, ends.outward.openings))
        called = ends.called(ends.src_job.job, owner)
        sentence = f"job {called} has the external address {ends.outward.address} with {opened} open"
        by = [] if ends.gateway is None else [Step("external", f"a Linux gateway sends it as {ends.outward.address}")]
        return [Step("external", f"{sentence}: explained for {packet}{where}"), *by]
    return []
