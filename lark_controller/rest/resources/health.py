"""``/healthz``, ``/readyz`` and ``/metrics``: for load balancers and Prometheus."""

from __future__ import annotations

from typing import Any

from flask import Response

from lark_controller.api.metrics import CONTENT_TYPE
from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.schemas.answers import HealthSchema, ReadinessSchema
from lark_controller.rest.schemas.queries import MetricsQuery
from lark_controller.rest.tokens import Scope

blueprint = resource("health", "For load balancers and Prometheus.", prefix="/")


@operation(blueprint, "GET", "/healthz", name="check_health", scopes=(), answers={200: HealthSchema})
def healthz() -> dict[str, str]:
    """Answer while the process lives."""
    return {"status": "ok"}


@operation(
    blueprint, "GET", "/readyz", name="check_readiness", scopes=(), answers={200: ReadinessSchema, 503: ReadinessSchema}
)
def readyz() -> Any:
    """Answer whether the controller can do its work (200), or why not (503)."""
    readiness = current().controls.health.ready()
    return readiness, 200 if readiness.ready else 503


@operation(
    blueprint,
    "GET",
    "/metrics",
    name="read_metrics",
    scopes=(Scope.READ,),
    query=MetricsQuery,
    answers={200: None},
    texts={200: ("text/plain",)},
)
def metrics(_: dict[str, Any]) -> Response:
    """The metrics, in Prometheus's text format; one that stands by has handed on what is asked of the active one."""
    return Response(current().metrics.render(), content_type=CONTENT_TYPE)
