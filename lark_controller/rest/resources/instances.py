"""``/v1/instances``: the controllers on one database. Every one of them answers."""

from __future__ import annotations

from typing import Any, Final

from lark_controller.api.instances import Instance, Instances
from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import actor, current
from lark_controller.rest.schemas.described import schema_of
from lark_controller.rest.tokens import Scope

blueprint = resource("instances", "The controllers on one database: one is active, the others stand by.")

InstanceSchema: Final = schema_of(Instance, "InstanceSchema")
InstancesSchema: Final = schema_of(Instances, "InstancesSchema")


@operation(blueprint, "GET", "/instances", name="list_instances", scopes=(Scope.READ,), answers={200: InstancesSchema})
def index() -> Any:
    """List the instances, the active one first, with the number of the term and the reason for the last takeover."""
    return current().controls.instances.all()


@operation(
    blueprint,
    "POST",
    "/instances/<instance>/drain",
    name="drain_instance",
    scopes=(Scope.OPERATE,),
    answers={200: InstancesSchema},
    problems=(404, 409),
)
def drain(instance: str) -> Any:
    """Have the active instance, by name or id, let go, so that one that stands by takes over."""
    return current().controls.instances.drain(instance, actor())
