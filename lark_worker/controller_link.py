"""The worker's requests to the controller: register, renew, end. Absence and refusal are different errors."""

from __future__ import annotations

import contextlib
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Any, Final, TypeVar

from lark_common.client import (
    Client,
    ProblemError,
    UnreachableError,
)
from lark_common.controllers import urls
from lark_common.endpoint import read_token
from lark_common.errors import SettingError
from lark_common.runs import Address, EndedBy, Network
from lark_common.scitags import Marks
from lark_common.scitags import from_json as marks_from_json
from lark_common.transfers import Treatment, treatment_of
from lark_common.worker_rules import WaysOut, WorkerRules, from_json
from lark_worker.errors import AwayError, RefusedError
from lark_worker.queues.shaping import Seen
from lark_worker.settings import Settings

Value = TypeVar("Value")

# Statuses of an ad that is itself at fault. With any other a further attempt may succeed.
REFUSALS: Final = frozenset({400, 409, 413, 415, 422})
# The longest answer in bytes: the rules of a pool with tens of thousands of jobs have a tenth of it.
MAX_ANSWER: Final = 1 << 23
# Letters of a reason, and addresses of a job, that are taken.
MAX_REASON: Final = 1000
MAX_ADDRESSES: Final = 16
# Ports and names of external addresses: they become environment of jobs.
MAX_OPENINGS: Final = 64
# Pools of external addresses that slots' ads tell of.
MAX_POOLS: Final = 256
_WORD: Final = re.compile(r"[A-Za-z0-9./-]{1,253}")
# Seconds of a lease before the first answer, and the shortest that is accepted.
DEFAULT_LEASE: Final = 900.0
LEAST_LEASE: Final = 15.0


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of rules: the jobs that cannot be enforced (id, reason), those whose network is not made yet, and the
    worker's interfaces that lead away."""

    refused: Mapping[str, str]
    late: frozenset[str]
    out: WaysOut


@dataclass(frozen=True, slots=True)
class Renewed:
    """The controller's view of a worker's jobs: those that it does not know, and state and reason of the others
    that are not enforced (None: it does not say)."""

    missing: frozenset[str]
    unsettled: Mapping[str, tuple[str, str]] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The state, reason, addresses and external addresses of a registered job; at these, what is open there (words) and
    a name (``""``: none)."""

    state: str
    reason: str
    addresses: tuple[Address, ...]
    external: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    external_name: str = ""

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of a record that follow from it, beside the addresses."""
        return {
            "state": self.state,
            "reason": self.reason,
            "external": self.external,
            "opened": self.opened,
            "external_name": self.external_name,
        }


@dataclass(frozen=True, slots=True)
class Advised:
    """Advice for a job in a sentence, and the whole Mb/s to ask for (None: there is no advice).

    ``wan`` is how many bytes it has received from the WAN and sent there (None: not counted). ``pairs`` is the same
    advice for where it sends with bandwidth reserved for that: empty where there is no such pair.
    """

    sentence: str
    megabits: int | None
    wan: tuple[int, int] | None = None
    pairs: str = ""
    pairs_megabits: int | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """The controller's answer to a report of transfers: the jobs that it does not know, what is not the WAN, and the
    treatments of the report's jobs by id (None: the policy has no rule of transfers, or the controller is older).
    ``scitags`` is the revision of jobs' marks, empty where flows are reported to nobody."""

    missing: frozenset[str]
    local: tuple[Network, ...]
    treatments: Mapping[str, Treatment] | None = None
    scitags: str = ""


@dataclass(frozen=True, slots=True)
class Headroom:
    """The unused Mb/s: below groups' ceilings in the WAN, and of what there is for transfers of groups and of access
    points."""

    wan: Mapping[str, float] = field(default_factory=dict)
    transfers: Mapping[str, float] = field(default_factory=dict)
    access_points: Mapping[str, float] = field(default_factory=dict)


def _unsettled(each: Mapping[str, Any]) -> tuple[str, tuple[str, str]]:
    return str(each["job"]), (str(each["state"])[:MAX_REASON], str(each["reason"])[:MAX_REASON])


class ControllerLink:
    """A client of the controller; thread-safe. Every call raises AwayError where the controller cannot be asked.

    ``lease`` is the seconds that a job lives without renewal, by the controller's last answer. Raises SettingError
    where jobs' users can read the token. With several URLs each call goes to the controller that answered last, and
    from there on to the others, within the same time. ``answered_at`` is the time of the last answer (seconds since
    1970, 0: none), ``failures`` the number of requests without one.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self.lease = DEFAULT_LEASE
        self.answered_at = 0.0
        self.failures = 0
        self._lock = threading.Lock()
        _refuse_shared_secrets(settings)

    @property
    def ahead(self) -> float:
        """Seconds by which the controller's clock was ahead of this worker's at its last answer, to within a second."""
        return 0.0 if self._client is None else self._client.ahead

    def silent(self) -> dict[str, str]:
        """The controllers that do not answer, each asked by itself, with the reasons."""
        found = {}
        for url in urls(self._settings.url):
            try:
                self._connect(url).healthy()
            except (ProblemError, UnreachableError, SettingError, KeyError) as error:
                found[url] = str(error)
        return found

    def register(self, body: str, wait: float = 0.0, running: bool = False) -> Answer:
        """Post a job, which may be ``running`` already. Raises RefusedError where the controller refuses it."""
        answer, ahead = self._ask(lambda client: (client.register(body, wait, running), client.ahead))
        try:
            read = _answer(answer)
            self.lease = _lease(answer, ahead)
        except (KeyError, TypeError, ValueError):
            raise AwayError(f"{self._settings.url} does not answer as a Lark controller does") from None
        if read.state == "refused":
            raise RefusedError(read.reason or "the controller gave no reason")
        return read

    def renew(self, host: str, job_ids: Sequence[str]) -> Renewed:
        """Renew the leases of this worker's jobs; returns what the controller knows of them."""
        answer, ahead = self._ask(lambda client: (client.renew_all(host, job_ids), client.ahead))
        try:
            self.lease = _lease(answer, ahead)
            unsettled = answer.get("unsettled")
            return Renewed(
                frozenset(map(str, answer["missing"])),
                # An earlier controller does not say.
                None if unsettled is None else dict(map(_unsettled, unsettled)),
            )
        except (KeyError, TypeError, ValueError):
            raise AwayError(f"{self._settings.url} does not answer as a Lark controller does") from None

    def end(self, job_id: str, exit_ad: str, by: EndedBy) -> None:
        """End a job; one that is unknown to the controller has ended."""
        try:
            self._ask(lambda client: client.end(job_id, exit_ad, by))
        except _UnknownError:
            return
        except RefusedError:
            # The exit ad is not acceptable; that the job has ended still counts.
            if exit_ad:
                self.end(job_id, "", by)

    def wan(self, host: str, job_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Bytes that a host's jobs have received from the WAN and sent there, by the controller's last readings; those
        of which they are not counted are left out."""
        try:
            found = self._ask(lambda client: client.use_of(host, job_ids))
            return {str(each["job"]): (int(each["wan_bytes_in"]), int(each["wan_bytes_out"])) for each in found}
        except (_UnknownError, KeyError, TypeError, ValueError, OverflowError):
            return {}

    def advice(self, job_id: str, fresh: bool = False) -> Advised | None:
        """The controller's advice on what a job asks for, and the WAN's part of its use; None for a job that it does
        not know. With ``fresh`` the controller reads the counters at the switch now; else it goes by its last
        reading."""
        try:
            found = self._ask(lambda client: client.advice(job_id, fresh))
            megabits, inward, outward = found["advised"], found["wan_bytes_in"], found["wan_bytes_out"]
            # An earlier controller has none.
            pairs = found.get("pairs") or {"sentence": "", "advised": None}
            return Advised(
                str(found["sentence"])[:MAX_REASON],
                None if megabits is None else int(megabits),
                None if inward is None or outward is None else (int(inward), int(outward)),
                str(pairs["sentence"])[:MAX_REASON],
                None if pairs["advised"] is None else int(pairs["advised"]),
            )
        except (_UnknownError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None

    def headroom(self) -> Headroom:
        """The headroom of groups and access points, each in the direction that has less."""
        try:
            found = self._ask(lambda client: client.headroom())
            # An earlier controller has no capacities.
            groups, points = found["groups"], found.get("access_points", [])
            return Headroom(
                _left(groups, "ceiling", "wan"),
                _left([each for each in groups if "transfer_capacity" in each], "transfer_capacity", "transfer"),
                _left(points, "transfer_capacity", "transfer"),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return Headroom()

    def external_headroom(self) -> dict[str, int]:
        """The free addresses of each pool of external addresses; empty where the controller has none."""
        try:
            found = self._ask(lambda client: client.external_pools())
            return {str(pool["name"]): int(pool["free"]) for pool in found[:MAX_POOLS]}
        except (_UnknownError, KeyError, TypeError, ValueError, OverflowError):
            return {}

    def forged(self, job_id: str, detail: str) -> None:
        """Write a forged ad into the controller's audit trail."""
        self._ask(lambda client: client.forged(job_id, detail))

    def limited(self, job_id: str, detail: str) -> None:
        """Note that a job has met a limit of this worker."""
        self._ask(lambda client: client.limited(job_id, detail))

    def rules(self, host: str, after: str, wait: float) -> tuple[str, WorkerRules | None]:
        """The rules of this worker and their revision, None where that is ``after`` for another ``wait`` seconds."""
        answer = self._ask(lambda client: client.worker_rules(host, after, wait))
        try:
            given = answer["rules"]
            return str(answer["revision"]), None if given is None else from_json(given)
        except (KeyError, TypeError, ValueError) as error:
            raise AwayError(f"{self._settings.url} does not give rules as a Lark controller does: {error}") from None

    def rules_confirmed(self, host: str, revision: str, applied: Applied) -> None:
        """Report that a revision of the rules is in place, and the jobs that it refuses."""
        self._ask(lambda client: client.confirm_rules(host, revision, applied.refused, applied.late, applied.out))

    def counters(self, job_id: str, counted: Mapping[str, int], final: bool = False) -> None:
        """Report a job's counters since its start; nothing happens for one that is unknown to the controller."""
        with contextlib.suppress(_UnknownError):
            self._ask(lambda client: client.counters(job_id, counted, final))

    def transfers(self, host: str, moved: Mapping[str, Mapping[str, Any]]) -> Noted | None:
        """Report what jobs' transfers have moved since the job's start, by the job's id; None where the controller is
        an older one. Raises RefusedError."""
        try:
            answer = self._ask(lambda client: client.transfers(host, moved))
            local = tuple(map(ip_network, answer["local"]))
            given = answer.get("treatments")
            treatments = None if given is None else {str(job): treatment_of(each) for job, each in given.items()}
            missing, revision = frozenset(map(str, answer["missing"])), str(answer.get("scitags", ""))
            return Noted(missing, local, treatments, revision)
        except _UnknownError:
            return None
        except (AttributeError, KeyError, TypeError, ValueError):
            raise AwayError(f"{self._settings.url} does not answer as a Lark controller does") from None

    def marks(self, host: str, job_ids: Sequence[str]) -> Marks:
        """The marks (SciTags) of jobs, and the receivers of reports. Raises RefusedError."""
        try:
            return marks_from_json(self._ask(lambda client: client.marks(host, job_ids)))
        except _UnknownError:
            return Marks("")
        except ValueError as error:
            raise AwayError(f"{self._settings.url} does not give marks as a Lark controller does: {error}") from None

    def delivered(self, host: str, at: float, queues: Mapping[tuple[str, str], Seen]) -> None:
        """Report the delivery of jobs' queues at this worker's uplinks until ``at`` (seconds of any clock that only
        grows), by the job's id and the queue's name."""
        reports: list[dict[str, str | int]] = [
            {
                "job": job_id,
                "queue": name,
                "promised": each.promised,
                "sent": each.sent,
                "dropped": each.dropped,
                "waited": round(1000 * each.waited),
            }
            for (job_id, name), each in queues.items()
        ]
        self._ask(lambda client: client.delivered(host, round(1000 * at), reports))

    def passed(self, call: Callable[[Client], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        """Passes a job's own request on: 200 and the answer, or status and problem document."""

        def made(client: Client) -> tuple[int, dict[str, Any]]:
            try:
                return 200, call(client)
            except ProblemError as error:
                if error.status in (401, 403, 429) or error.status >= 500:
                    # The worker's trouble, not the job's.
                    raise
                return error.status, error.problem
            except (KeyError, TypeError):
                raise AwayError(f"{self._settings.url} does not answer as a Lark controller does") from None

        return self._ask(made)

    def _ask(self, call: Callable[[Client], Value]) -> Value:
        try:
            found = self._answered(call)
        except (_UnknownError, RefusedError):
            self.answered_at = time.time()
            raise
        except AwayError:
            with self._lock:
                self.failures += 1
            raise
        self.answered_at = time.time()
        return found

    def _answered(self, call: Callable[[Client], Value]) -> Value:
        try:
            if self._client is None:
                self._client = self._connect()
            return call(self._client)
        except (UnreachableError, SettingError) as error:
            raise AwayError(str(error)) from None
        except ProblemError as error:
            if error.status == 404:
                raise _UnknownError(str(error)) from None
            if error.status in REFUSALS:
                raise RefusedError(str(error)[:MAX_REASON], error.problem.get("refused") == "idle") from None
            if error.status in (401, 403):
                # The token file may hold another one by the next time.
                self._client = None
            raise AwayError(str(error)[:MAX_REASON]) from None

    def _connect(self, url: str = "") -> Client:
        _refuse_shared_secrets(self._settings)
        token = read_token(self._settings.token_file) if self._settings.token_file else None
        return Client(
            url or self._settings.url,
            token,
            self._settings.ca_file,
            self._settings.timeout,
            self._settings.cert_file,
            self._settings.key_file,
            # Every thread of this service that asks has others behind it, which must not wait for ever.
            whole=True,
            most=MAX_ANSWER,
        )


class _UnknownError(AwayError):
    """The controller has no such job."""


def _left(rows: Sequence[Mapping[str, Any]], capacity: str, of: str) -> dict[str, float]:
    """The part of each one's capacity that its rates leave in the direction that has less."""
    return {
        str(row["name"]): max(0.0, row[capacity] - max(row["rate"][f"{of}_inward"], row["rate"][f"{of}_outward"]))
        for row in rows
        if row[capacity] is not None
    }


def _answer(answer: dict[str, Any]) -> Answer:
    given = answer["addresses"]
    if len(given) > MAX_ADDRESSES:
        raise ValueError(f"{len(given)} addresses of one job")
    addresses = tuple(ip_address(str(each["address"])) for each in given)
    state, reason = answer["state"], answer["reason"]
    if not isinstance(state, str) or not isinstance(reason, str) or not state.isidentifier():
        raise ValueError("no state of a job")
    # A controller of before external addresses names none.
    external = tuple(str(ip_address(str(each))) for each in answer.get("external_addresses", ())[:MAX_ADDRESSES])
    opened = tuple(str(each) for each in answer.get("external_open", ())[:MAX_OPENINGS])
    name = str(answer.get("external_name", ""))
    if not all(map(_WORD.fullmatch, (*opened, *filter(None, [name])))):
        raise ValueError("no ports, or no name, of an external address")
    return Answer(state, reason[:MAX_REASON], addresses, external, opened, name)


def _lease(answer: dict[str, Any], ahead: float) -> float:
    """The seconds that a job's lease still lasts; the controller's clock, by which it ends, is ``ahead``."""
    until = datetime.fromisoformat(answer["lease_until"])
    return max(LEAST_LEASE, (until - datetime.now(UTC)).total_seconds() - ahead)


def _refuse_shared_secrets(settings: Settings) -> None:
    for variable, file in (("TOKEN_FILE", settings.token_file), ("KEY_FILE", settings.key_file)):
        with contextlib.suppress(OSError):  # a file that is not there yet is missed when it is needed
            if file is not None and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
                raise SettingError(
                    f"LARK_WORKER_{variable}={file}: group or others may read or write it (mode {mode:o}),"
                    f" jobs' users among them; accepted: mode 0600 (chmod 600 {file})"
                )
