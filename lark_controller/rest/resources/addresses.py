"""``/v1/addresses``: the job behind an address."""

from __future__ import annotations

import ipaddress

from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.own_jobs import own_user, shown_detail
from lark_controller.rest.problems import Problem
from lark_controller.rest.resources.jobs import joined
from lark_controller.rest.schemas.answers import JobDetailSchema, Joined
from lark_controller.rest.tokens import Scope

blueprint = resource("addresses", "The addresses of jobs.")


@operation(
    blueprint,
    "GET",
    "/addresses/<address>",
    name="find_job_by_address",
    scopes=(Scope.READ, Scope.SELF),
    answers={200: JobDetailSchema},
    problems=(404, 422),
)
def show(address: str) -> Joined:
    """Show the live job behind an address."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        wrong = {"parameter": "address", "problem": "an IPv4 or IPv6 address is accepted"}
        raise Problem(422, f"address: {wrong['problem']}", "parameters", errors=[wrong]) from None
    return joined(shown_detail(current().controls.jobs.at(str(known), own_user())))
