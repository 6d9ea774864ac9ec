"""``/v1/switches``: the switches, their ports, problems and flows."""

from __future__ import annotations

from typing import Any

from lark_controller.api.switches import FlowFilter
from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import next_url
from lark_controller.rest.context import current
from lark_controller.rest.job_words import job_among
from lark_controller.rest.schemas.answers import FlowPageSchema, SwitchDetailSchema, SwitchListSchema
from lark_controller.rest.schemas.queries import FlowQuery
from lark_controller.rest.tokens import Scope

blueprint = resource("switches", "The OpenFlow switches that the controller drives.")


@operation(blueprint, "GET", "/switches", name="list_switches", scopes=(Scope.READ,), answers={200: SwitchListSchema})
def index() -> dict[str, object]:
    """List the switches."""
    return {"switches": current().controls.switches.all()}


@operation(
    blueprint,
    "GET",
    "/switches/<datapath>",
    name="show_switch",
    scopes=(Scope.READ,),
    answers={200: SwitchDetailSchema},
    problems=(404,),
)
def show(datapath: str) -> Any:
    """Show a switch, by datapath id or name."""
    return current().controls.switches.find(datapath)


@operation(
    blueprint,
    "GET",
    "/switches/<datapath>/flows",
    name="list_flows",
    scopes=(Scope.READ,),
    query=FlowQuery,
    answers={200: FlowPageSchema},
    problems=(404, 409, 422, 502),
)
def flows(query: dict[str, Any], datapath: str) -> dict[str, object]:
    """List a switch's flows, each with the policy that asked for it."""
    context = current()
    chosen = FlowFilter(job_among(query), query.get("table"), query["text"])
    with context.waiting() as timeout:
        page = context.controls.switches.flows(datapath, chosen, query.get("cursor"), query["limit"], timeout)
    following = page.next_cursor
    return {"flows": page.flows, "tables": page.tables, "next": next_url(following), "next_cursor": following}
