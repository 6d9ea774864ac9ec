"""A client of the REST API for scripts, on the standard library alone.

``Client("https://lark.example:8443", token, ca="/etc/lark/ca.pem").jobs(owner="alice")``; the URL may be
``unix:/run/lark/rest.sock``, or the URLs of several controllers, separated by spaces or commas. Answers are the JSON
objects that ``docs/reference/rest.md`` describes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from lark_common.endpoint import ProblemError, UnreachableError
from lark_common.rest_requests import Answer, RestRequests
from lark_common.runs import EndedBy
from lark_common.worker_rules import UNTOLD, WaysOut

__all__ = ["Answer", "Client", "ProblemError", "UnreachableError"]


class Client(RestRequests):
    """One controller, or several of which one is active; thread-safe, since every call makes a connection of its own.

    ``cert`` is a certificate (PEM) to show over TLS, with its private key in ``key`` or in the same file.
    ``timeout`` is in seconds, for each step of a request, and with ``whole`` for the whole answer; a post with
    ``wait`` gets that much more. ``most`` is the longest answer in bytes. With ``unverified`` anybody may
    answer. Without a token, ``munge_socket`` is that of the munged whose credentials say who asks (``""``: where it
    usually is). Every call raises UnreachableError where nothing answers, or not as a controller does, ProblemError for
    what the controller refuses, and MungeError where no credential can be made. Of several controllers the one that
    answered last is asked first, and ``timeout`` is for all together.
    """

    def register(self, body: str | Mapping[str, Any], wait: float = 0.0, running: bool = False) -> Answer:
        """Register a run: the text of both ads with ``------`` between, or ``{"job_ad": …, "machine_ad": …}``. One
        that is ``running`` keeps its network where it cannot have the external address that it asks for."""
        text, kind = (body, "text/plain") if isinstance(body, str) else (json.dumps(body), "application/json")
        return self._json("POST", "/v1/jobs", {"running": "true"} if running else None, text, kind, wait=wait)

    def renew(self, job_id: str) -> Answer:
        """Renew a job's lease."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/renew")

    def renew_all(self, host: str, job_ids: Sequence[str]) -> Answer:
        """Renew the leases of a host's jobs; ``missing`` in the answer are those that do not live there."""
        body = json.dumps({"jobs": list(job_ids)})
        return self._json("POST", f"/v1/hosts/{_part(host)}/leases", None, body, "application/json")

    def use_of(self, host: str, job_ids: Sequence[str]) -> list[Answer]:
        """The WAN's part of the use of a host's jobs, by the last readings: ``job``, ``wan_bytes_in``,
        ``wan_bytes_out``."""
        body = json.dumps({"jobs": list(job_ids)})
        path = f"/v1/hosts/{_part(host)}/use"
        return list(self._json("POST", path, None, body, "application/json")["jobs"])

    def end(self, job_id: str, exit_ad: str = "", by: EndedBy = EndedBy.HOOK) -> Answer:
        """End a job."""
        return self._json("DELETE", f"/v1/jobs/{_part(job_id)}", {"by": by}, exit_ad or None)

    def forged(self, job_id: str, detail: str) -> Answer:
        """Note in the audit trail that a forged ad was refused."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/forgery", None, detail, again=False)

    def limited(self, job_id: str, detail: str) -> Answer:
        """Note that a job has met a limit of its worker, such as that of its connections."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/limited", None, detail, again=False)

    def lift(self, job_id: str) -> Answer:
        """End a job's quarantine, whatever the pool's ads say."""
        return self._json("DELETE", f"/v1/jobs/{_part(job_id)}/quarantine")

    def job(self, job_id: str, fresh: bool = False) -> Answer:
        """A job, live or ended, by any of its names: ``103.0``, ``submit1#103.0`` where two access points have it, its
        GlobalJobId, its id, or at least 4 first digits of that. With ``fresh`` its counters are read at its switch
        now."""
        return self._json("GET", f"/v1/jobs/{_part(job_id)}", {"fresh": "true"} if fresh else None)

    def jobs(self, **chosen: str | None) -> Iterator[Answer]:
        """All jobs that are chosen (owner, group, host, cluster, state, global_job_id), page by page."""
        return self._pages("/v1/jobs", "jobs", chosen)

    def advice(self, job_id: str, fresh: bool = False) -> Answer:
        """A job's request against its use and losses, and the rate to ask for; of a live job so far. With ``fresh`` its
        counters are read at its switch now."""
        return self._json("GET", f"/v1/jobs/{_part(job_id)}/advice", {"fresh": "true"} if fresh else None)

    def pairs(self, job_id: str, application: bool = False) -> Answer:
        """Advice by pair: where a job sends with bandwidth reserved for that, or all jobs of its application."""
        return self._json("GET", f"/v1/jobs/{_part(job_id)}/pairs", {"application": "true"} if application else None)

    def job_at(self, address: str) -> Answer:
        """The live job behind an address."""
        return self._json("GET", f"/v1/addresses/{_part(address)}")

    def switches(self) -> list[Answer]:
        """All switches."""
        return list(self._json("GET", "/v1/switches")["switches"])

    def switch(self, datapath: str) -> Answer:
        """A switch with its ports and problems, by datapath id or name."""
        return self._json("GET", f"/v1/switches/{_part(datapath)}")

    def flows(self, datapath: str, **chosen: str | None) -> Iterator[Answer]:
        """All flows of a switch in packet order, or those that are chosen (job, table, text), page by page."""
        return self._pages(f"/v1/switches/{_part(datapath)}/flows", "flows", chosen)

    def policy(self) -> Answer:
        """The policy in force."""
        return self._json("GET", "/v1/policy")

    def put_policy(self, text: str) -> Answer:
        """Put a policy in force."""
        return self._json("PUT", "/v1/policy", None, text, "application/yaml")

    def policy_versions(self) -> Iterator[Answer]:
        """All versions of the policy without their texts, newest first, page by page."""
        return self._pages("/v1/policy/versions", "versions", {})

    def policy_version(self, version: int) -> Answer:
        """One version of the policy."""
        return self._json("GET", f"/v1/policy/versions/{version}")

    def policy_difference(self, old: int, new: int | None = None) -> Answer:
        """The difference between two versions of the policy; the second is the one in force by default."""
        return self._json("GET", "/v1/policy/difference", {"old": old} | ({} if new is None else {"new": new}))

    def restore_policy(self, version: int) -> Answer:
        """Put the text of an earlier version in force again."""
        return self._json("POST", f"/v1/policy/versions/{version}/restore")

    def check_policy(self, text: str) -> Answer:
        """Every mistake in a policy."""
        return self._json("POST", "/v1/policy/check", None, text, "application/yaml")

    def plan_policy(self, text: str) -> Answer:
        """The changes that a policy would make."""
        return self._json("POST", "/v1/policy/plan", None, text, "application/yaml")

    def policy_schema(self) -> Answer:
        """The JSON Schema of policies."""
        return self._json("GET", "/v1/policy/schema")

    def explain(self, src: str, dst: str) -> Answer:
        """Explain why a packet from ``src`` reaches ``dst``, or does not; each an address or a job."""
        return self._json("GET", "/v1/explain", {"src": src, "dst": dst})

    def worker_rules(self, host: str, after: str = "", wait: float = 0.0) -> Answer:
        """A worker's rules, once their revision is another than ``after``, or after ``wait`` seconds without."""
        return self._json("GET", f"/v1/hosts/{_part(host)}/rules", {"after": after}, wait=wait)

    def confirm_rules(
        self,
        host: str,
        revision: str,
        refused: Mapping[str, str] | None = None,
        late: Iterable[str] = (),
        out: WaysOut = UNTOLD,
    ) -> Answer:
        """Confirm a worker's revision of its rules, but for jobs that it refuses (id, reason) and jobs that are late,
        since their networks are still to be made. ``out`` are its interfaces that lead away."""
        report: dict[str, Any] = {"revision": revision, "refused": dict(refused or {}), "late": sorted(late)}
        report["uplinks"] = dict(out.speeds)
        # Older controllers refuse what they do not know, so it is left out where it says no more than that.
        if any(each.uplinks != out.speeds.keys() for each in out.ways):
            ways = ((str(each.network_type), sorted(each.uplinks)) for each in out.ways)
            report["ways"] = [{"network_type": kind, "uplinks": uplinks} for kind, uplinks in ways]
        body = json.dumps(report)
        return self._json("PUT", f"/v1/hosts/{_part(host)}/rules", None, body, "application/json")

    def delivered(self, host: str, at: int, queues: Iterable[Mapping[str, str | int]]) -> Answer:
        """Report the delivery of jobs' queues on a worker until ``at`` (milliseconds of any clock that only
        grows), by the names of the reference."""
        body = json.dumps({"at": at, "queues": list(queues)})
        return self._json("POST", f"/v1/hosts/{_part(host)}/delivered", None, body, "application/json")

    def transfers(self, host: str, moved: Mapping[str, Mapping[str, Any]]) -> Answer:
        """Report what the transfers of a worker's jobs have moved since each job's start, by the job's id and the names
        of the reference."""
        body = json.dumps({"jobs": [{"job": job_id, **counts} for job_id, counts in moved.items()]})
        return self._json("POST", f"/v1/hosts/{_part(host)}/transfers", None, body, "application/json")

    def marks(self, host: str, job_ids: Sequence[str]) -> Answer:
        """The marks (SciTags) of a worker's jobs, and the receivers of reports of their flows."""
        body = json.dumps({"jobs": list(job_ids)})
        return self._json("POST", f"/v1/hosts/{_part(host)}/scitags", None, body, "application/json")

    def groups(self) -> list[Answer]:
        """The accounting groups of the policy in force."""
        return list(self._json("GET", "/v1/groups")["groups"])

    def headroom(self) -> Answer:
        """The accounting groups of the policy in force, and its access points, with what their jobs move now."""
        return self._json("GET", "/v1/groups")

    def overview(self) -> Answer:
        """The whole pool in a few numbers, and the switches with problems."""
        return self._json("GET", "/v1/overview")

    def map(self) -> Answer:
        """Switches with their load, the way to the WAN, and which users reach each other."""
        return self._json("GET", "/v1/map")

    def token(self) -> Answer:
        """The name, scopes and expiry of this client's token."""
        return self._json("GET", "/v1/token")

    def reserve(
        self,
        source: str,
        destination: str,
        rate: float,
        duration: float | None = None,
        wait: float = 0.0,
        *,
        steady: bool = False,
    ) -> Answer:
        """Reserve ``rate`` Mb/s for what ``source`` sends to ``destination``, for so many seconds (None: as long as its
        jobs live). Each is a job's id or address, or a host of the topology; the destination also ``wan``, or an
        address or network. ``wait`` is how many seconds to wait for the queue at the sender. ``steady``: the rate is
        the most as well; else the flow may use what is free, too."""
        wish = {"source": source, "destination": destination, "rate": rate, "duration": duration}
        if steady:
            wish["steady"] = True
        body = json.dumps(wish)
        return self._json("POST", "/v1/reservations", None, body, "application/json", wait=wait, again=False)

    def reservations(self, job: str | None = None) -> Iterator[Answer]:
        """All valid reservations, of all or of one job, page by page."""
        return self._pages("/v1/reservations", "reservations", {"job": job})

    def reservation(self, reservation_id: str, wait: float = 0.0) -> Answer:
        """A reservation, once its sender enforces it, or after ``wait`` seconds without."""
        return self._json("GET", f"/v1/reservations/{_part(reservation_id)}", wait=wait or None)

    def change_reservation(self, reservation_id: str, **change: float | None) -> Answer:
        """Give a reservation another ``rate`` (Mb/s), another ``duration`` (seconds from now, None: until its jobs
        end), or make it ``steady`` or not."""
        return self._json(
            "PATCH", f"/v1/reservations/{_part(reservation_id)}", None, json.dumps(change), "application/json"
        )

    def release(self, reservation_id: str) -> Answer:
        """Release a reservation."""
        return self._json("DELETE", f"/v1/reservations/{_part(reservation_id)}")

    def associate_external_address(
        self,
        job: str,
        opened: Sequence[str] = (),
        seconds: float | None = None,
        wait: float = 0.0,
        family: str | None = None,
        name: str | None = None,
        reservation: str | None = None,
    ) -> Answer:
        """Give a live job an external address with these protocols and ports open (none: all that the policy opens),
        for so many seconds (None: as long as the policy lets it), of a ``family``: ``ipv4``, or ``ipv6``, which opens
        its own (None: IPv4 where the policy gives that), with a ``name`` in the DNS, of which this is the first label,
        until the job's ``reservation`` ends (its id). A job that has one keeps it."""
        given = {"family": family, "name": name, "reservation": reservation}
        more = {key: value for key, value in given.items() if value is not None}
        body = json.dumps({"job": job, "open": list(opened), "seconds": seconds, **more})
        return self._json("POST", "/v1/external-addresses", None, body, "application/json", wait=wait)

    def external_addresses(self, job: str | None = None) -> Iterator[Answer]:
        """The external addresses of live jobs, of all or of one, page by page."""
        return self._pages("/v1/external-addresses", "addresses", {"job": job})

    def external_pools(self) -> list[Answer]:
        """The state of each pool of external addresses."""
        return list(self._json("GET", "/v1/external-pools")["pools"])

    def external_translations(self, after: str = "", wait: float = 0.0) -> Answer:
        """The changes of translations since a revision, once there are any; after ``wait`` seconds anyway."""
        return self._json("GET", "/v1/external-translations", {"after": after}, wait=wait)

    def confirm_external_translations(self, word: Mapping[str, object]) -> Answer:
        """Confirm a gateway's ``revision`` in its ``pools``, but for what it ``lacks``; ``seconds`` to the next."""
        return self._json("POST", "/v1/external-translations", None, json.dumps(word), "application/json")

    def external_address(self, association_id: str) -> Answer:
        """An external address by the id under which it was given, also when it is over."""
        return self._json("GET", f"/v1/external-addresses/{_part(association_id)}")

    def release_external_address(self, association_id: str) -> Answer:
        """Release an external address."""
        return self._json("DELETE", f"/v1/external-addresses/{_part(association_id)}")

    def links(self) -> list[Answer]:
        """The load of the links, and the reserved and remaining capacity of each."""
        return list(self._json("GET", "/v1/links")["links"])

    def watch_links(self, after: str, wait: float = 0.0) -> Answer:
        """The same with its version, once that is another than ``after``, or after ``wait`` seconds (at most 60)
        without; ``links`` is null then."""
        return self._json("GET", "/v1/links", {"after": after}, wait=wait)

    def watch_paths(self, host: str, after: str = "", wait: float = 0.0) -> Answer:
        """The reserved flows that a worker's jobs send, and what is free beside each, in the same way."""
        return self._json("GET", f"/v1/hosts/{_part(host)}/paths", {"after": after}, wait=wait)

    def add_join_token(self, hosts: Sequence[str], seconds: float) -> Answer:
        """Make a join token, good for these hosts for so many seconds; ``token`` in the answer is shown this once."""
        body = json.dumps({"hosts": list(hosts), "seconds": seconds})
        return self._json("POST", "/v1/joins", None, body, "application/json", again=False)

    def join_tokens(self) -> list[Answer]:
        """The join tokens that are good now."""
        return list(self._json("GET", "/v1/joins")["tokens"])

    def remove_join_token(self, join_id: str) -> list[Answer]:
        """Take a join token out of force; returns those that are left."""
        return list(self._json("DELETE", f"/v1/joins/{_part(join_id)}")["tokens"])

    def joined_workers(self) -> list[Answer]:
        """The workers whose tokens are good because they have joined."""
        return list(self._json("GET", "/v1/joined")["workers"])

    def revoke_joined_worker(self, host: str) -> list[Answer]:
        """Refuse the token of a worker that has joined; returns those that are left."""
        return list(self._json("DELETE", f"/v1/joined/{_part(host)}")["workers"])

    def authority(self) -> str:
        """The certificates (PEM) that workers are to trust, of a controller that is not trusted yet."""
        return str(self._json("GET", "/v1/authority").get("authority", ""))

    def join(self, host: str, sha256: str, request: str | None) -> Answer:
        """Let a worker join; this client's token is the last part of a join token. Who has joined may do so again with
        the same token of its own, and gets another certificate."""
        body = json.dumps({"host": host, "sha256": sha256, "request": request})
        return self._json("POST", "/v1/join", None, body, "application/json")

    def usage(
        self,
        by: str = "group",
        start: datetime | float | None = None,
        end: datetime | float | None = None,
        bucket: str = "none",
        **chosen: str | None,
    ) -> Iterator[Answer]:
        """The history of use by group, user, host or job, row by row: each subject's use in each ``bucket`` (minute,
        hour, day, none) between two times (seconds since 1970, or a datetime). ``group``, ``user`` and ``host``
        choose. ``start`` and ``end`` of the rows are ISO 8601.
        """
        query = {"by": by, "from": _moment(start), "to": _moment(end), "bucket": bucket, **chosen}
        return self._pages("/v1/usage", "rows", query)

    def rates(self, by: str = "group", limit: int = 100) -> list[Answer]:
        """The present rates of live jobs, by group, user, host or job, the highest first."""
        return list(self.rate_list(by, limit)["rates"])

    def rate_list(self, by: str = "group", limit: int = 100) -> Answer:
        """The same with the number of switches that are away."""
        return self._json("GET", "/v1/rates", {"by": by, "limit": limit})

    def drops(self, limit: int = 100) -> list[Answer]:
        """The packets that are dropped now, the most first: from whom, to where, by which rule, how fast."""
        return list(self.drop_list(limit)["drops"])

    def drop_list(self, limit: int = 100, job: str | None = None) -> Answer:
        """The same (of one job alone) with their sum, the number of switches that are away, and the WAN ports that are
        down."""
        of_job = {} if job is None else {"job": job}
        return self._json("GET", "/v1/drops", {"limit": limit, **of_job})

    def counters(self, job_id: str, counted: Mapping[str, int], final: bool = False) -> Answer:
        """Report a worker's counters of a job since its start, by the names of the reference."""
        body = json.dumps({**counted, "final": final})
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/counters", None, body, "application/json")

    def instances(self) -> Answer:
        """The controllers on this one's database, the active one first, and the present term."""
        return self._json("GET", "/v1/instances")

    def drain(self, instance: str) -> Answer:
        """Have the active controller, by name or id, let go, so that one that stands by takes over."""
        return self._json("POST", f"/v1/instances/{_part(instance)}/drain")

    def audit(self, subject: str | None = None) -> Iterator[Answer]:
        """The audit trail, newest first, page by page."""
        return self._pages("/v1/audit", "entries", {"subject": subject})

    def metrics(self) -> str:
        """The metrics, in Prometheus's text format."""
        return self._request(lambda data: data.decode("utf-8"), "GET", "/metrics")

    def healthy(self) -> bool:
        """True if the process answers."""
        return bool(self._json("GET", "/healthz")["status"] == "ok")

    def ready(self) -> Answer:
        """The controller's readiness to do its work: ``ready`` and ``reasons``."""
        try:
            return self._json("GET", "/readyz")
        except ProblemError as error:
            if error.status == 503 and "ready" in error.problem:
                return error.problem
            raise


def _moment(at: datetime | float | None) -> str | None:
    if isinstance(at, datetime):
        return at.astimezone().isoformat() if at.tzinfo is None else at.isoformat()
    return None if at is None else repr(float(at))


def _part(text: str) -> str:
    return quote(text, safe="")
