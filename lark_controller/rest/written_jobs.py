"""Jobs as JSON, written by hand: posts, ends and renewals come hundreds of times a second, lists have a thousand jobs,
and a schema library takes longer over the answer than all else does. A test holds the members to the schemas that are
documented."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flask import Response
from werkzeug.datastructures import Headers

from lark_controller.accounting.usage import JobUsage
from lark_controller.api.jobs import Confirmation
from lark_controller.jobs.job import Job
from lark_controller.rest.schemas.times import iso
from lark_controller.rest.schemas.usage import usage_members

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


def job_members(job: Job) -> dict[str, Any]:
    """The members of ``JobSchema``."""
    addresses = [
        {"address": str(address), "family": address.version, "block": None if block is None else str(block)}
        for address, block in job.blocks
    ]
    return {
        "id": job.id,
        "state": job.state.value,
        "reason": job.reason,
        "global_job_id": job.run.global_job_id,
        "started": job.run.started,
        "slot": job.run.slot,
        "owner": job.owner,
        "user": job.user,
        "group": job.group,
        "cluster": job.cluster,
        "proc": job.proc,
        "host": job.host,
        "network_type": job.network_type.value,
        "address_type": job.address_type.value,
        "addresses": addresses,
        "external_addresses": list(map(str, job.external_addresses)),
        "external_open": list(job.external_open),
        "external_name": job.external_name,
        "datapath": None if job.datapath is None else f"{job.datapath:016x}",
        "port": job.port,
        "mac": job.mac,
        "vlan": job.vlan,
        "bandwidth": job.bandwidth,
        "inbound": job.inbound,
        "outbound": job.outbound,
        "created": iso(job.created),
        "lease_until": iso(job.lease_until),
        "vouched": job.vouched,
    }


def registered_members(confirmation: Confirmation) -> dict[str, Any]:
    """The members of ``RegisteredSchema``."""
    waiting = [{"datapath": each.datapath, "reason": each.reason} for each in confirmation.waiting]
    return {**job_members(confirmation.job), "confirmed": list(confirmation.confirmed), "waiting": waiting}


def listed_members(job: Job, used: JobUsage | None, isolated: bool) -> dict[str, Any]:
    """The members of ``ListedJobSchema``."""
    return {**job_members(job), "isolated": isolated, "usage": None if used is None else usage_members(used)}


class _Written(Response):
    """An answer whose headers are sent as they are: its length is known, and its location is a path in ASCII."""

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        """As of a response; Flask would parse and put together the location, and copy all headers."""
        return self.headers


def written(members: object) -> Response:
    """An answer in JSON."""
    return _Written(_text(members), content_type="application/json")


def written_page(jobs: Iterable[Mapping[str, Any]], rest: Mapping[str, str | None]) -> Response:
    """An answer in JSON with a list of ``jobs`` and other members, put together job by job, so that those who go ahead
    wait for one of them at most."""
    texts = ",".join(map(_text, jobs))
    return _Written(f'{{"jobs":[{texts}],{_text(rest)[1:]}', content_type="application/json")


def _text(members: object) -> str:
    return json.dumps(members, separators=(",", ":"))
