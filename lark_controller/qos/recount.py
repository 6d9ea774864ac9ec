"""The counting of reservations anew by another policy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lark_common.errors import PathError
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy
from lark_controller.qos.booking import Finder, demand_of, job_rate, promise
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind
from lark_controller.qos.topology import Demand, Topology


class Recount:
    """The reservations by a policy and its topology (None: it has none); ``find`` has the live jobs, with the facts
    that the policy needs."""

    def __init__(self, policy: Policy, topology: Topology | None, find: Finder) -> None:
        self._policy = policy
        self._topology = topology
        self._find = find
        self._decide = Decider(policy).decide

    def demand(self, reservation: Reservation) -> Demand:
        """The demand of a reservation. Raises PathError."""
        return demand_of(reservation, self._topology, self._policy, self._find, decided=self._decide)

    def promised(self, live: Iterable[Job]) -> dict[str, Booking]:
        """The guarantees to live jobs, by job id; one takes nothing where no path is known for it."""
        policy, topology, found = self._policy, self._topology, dict[str, Booking]()
        if topology is None:
            return found
        for job in live:
            if (job.bandwidth or policy.bandwidths) and (booking := promise(job, policy, topology, self._decide)):
                found[job.id] = booking
        return found

    def is_over(self, reservation: Reservation) -> bool:
        """True of the guarantee that a rule's default gave to a live job, where no rule gives it one any more."""
        if reservation.kind is not ReservationKind.JOB or reservation.job is None:
            return False
        job = self._find(reservation.job)
        return job is not None and job_rate(job, self._policy, self._decide) is None

    def pathless(self, flows: Iterable[Reservation], step: Callable[[], None] = lambda: None) -> Iterator[str]:
        """The sentence on flows that count on links now and would have no path; ``step`` is called between them."""
        count, such = 0, ""
        for each in flows:
            step()
            try:
                # One inside a worker takes no link by any policy.
                _ = each.holds and self.demand(each)
            except PathError as error:
                count += 1
                job = None if each.job is None else self._find(each.job)
                sender = each.source if job is None else f"job {job.called}"
                such = such or f"{each.id} from {sender} to {each.destination}: {error}"
        if count:
            has = "1 reservation has" if count == 1 else f"{count} reservations have"
            yield f"{has} no path any more, and would count on no link, such as {such}"
