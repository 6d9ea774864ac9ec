"""Values are written as marshmallow would write them, with a part of its calls."""

from __future__ import annotations

import cProfile
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from flask import Flask
from marshmallow import Schema

from lark_controller.accounting.usage import JobUsage, Peak, Rate, Usage
from lark_controller.api.audit import AuditEntry
from lark_controller.api.switches import PortLoad, PortStatus, SwitchProblem, SwitchStatus
from lark_controller.api.usage import UsageRow
from lark_controller.policies.model import Because, Decision, RuleKind, SliceKey
from lark_controller.rest.api import operation, register, resource
from lark_controller.rest.resources.network_map import PortLoadSchema
from lark_controller.rest.schemas.answers import (
    AddressSchema,
    AuditEntrySchema,
    BecauseSchema,
    DecisionSchema,
    JobSchema,
    SwitchDetailSchema,
    SwitchSchema,
)
from lark_controller.rest.schemas.usage import JobUsageSchema, PeakSchema, RateSchema, UsageRowSchema, UsageSchema
from lark_controller.rest.schemas.written import Written
from tests.fixtures.databases import FULL, NOW
from tests.fixtures.rest_app import make_api

BECAUSE: Final = Because(RuleKind.BLOCK, 1, 2, "true", (("Owner", '"bob"'),))
SWITCH: Final = SwitchStatus(
    "000000000000002a", "w42", "edge", connected=True, in_sync=False, since=NOW,
    ports=(PortStatus(1, "lark1", "job", FULL.id), PortStatus(2, "eth0", "uplink")),
    problems=(SwitchProblem(NOW, "a table is full", job=FULL.id),),
)  # fmt: skip
SUMS: Final = {
    name: number for number, name in enumerate(Usage._fields) if name not in ("throttled", "transfer_millis")
}
SECONDS: Final = {"throttled_seconds": 0.012, "transfer_seconds": 0.017}
RATES: Final = {
    "inward": 0.0, "outward": 1e-6, "wan_inward": 2e-6, "wan_outward": 3e-6, "transfer_inward": 4e-6,
    "transfer_outward": 5e-6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (JobSchema, FULL),
        (DecisionSchema, Decision(slice=SliceKey(1, '"bob"'), because=(BECAUSE,))),
        (SwitchSchema, SWITCH),
        (SwitchDetailSchema, SWITCH),
        (AuditEntrySchema, AuditEntry(1, NOW, "hook", "register", FULL.id, "why")),
        # A whole number where the schema has a fraction.
        (PortLoadSchema, PortLoad("eth0", wan=True, up=True, outward=5, inward=None, capacity=10.0)),
    ],
)
def test_a_value_is_written_as_its_schema_documents(schema: type[Written], value: object) -> None:
    whole = schema()
    assert json.dumps(whole.members(value)) == json.dumps(Schema.dump(whole, value))
    assert whole.dump([value, value], many=True) == [whole.members(value)] * 2


@pytest.mark.parametrize(
    ("schema", "value", "members"),
    [
        (UsageSchema, Usage(*range(18)), {**SUMS, **SECONDS}),
        (RateSchema, Rate(*range(6)), RATES),
        (PeakSchema, Peak(1_500_000, 0), {"inward": 1.5, "outward": 0.0}),
        (
            JobUsageSchema,
            JobUsage(Usage(*range(18)), Rate(*range(6)), 1.5, True, Peak(1_500_000, 0)),
            {**SUMS, **SECONDS, "rate": RATES, "peak": {"inward": 1.5, "outward": 0.0},
             "at": "1970-01-01T00:00:01.500Z", "final": True, "unread": False},
        ),
        (
            UsageRowSchema,
            UsageRow(Usage(*range(18)), 0.0, 60.0, user="bob@example"),
            {**SUMS, **SECONDS, "start": "1970-01-01T00:00:00.000Z", "end": "1970-01-01T00:01:00.000Z", "job": None,
             "owner": None, "user": "bob@example", "group": None, "host": None, "final": None},
        ),
        (AddressSchema, FULL.blocks[0], None),
        (BecauseSchema, BECAUSE,
         {"kind": "block", "position": 1, "line": 2, "when": "true", "values": {"Owner": '"bob"'}, "does": ""}),
    ],
)  # fmt: skip
def test_a_calculated_value_has_the_members_that_are_documented(
    schema: type[Written], value: Any, members: dict[str, object] | None
) -> None:
    written = schema().members(value)
    assert set(written) == set(schema().dump_fields)
    if members is not None:
        assert written == members


def _calls(work: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    return sum(each.callcount for each in profile.getstats())


def test_a_value_takes_a_part_of_the_calls() -> None:
    schema = SwitchSchema()
    assert _calls(lambda: schema.dump(SWITCH)) < _calls(lambda: Schema.dump(schema, SWITCH)) / 8


def test_a_query_is_read_by_its_schema_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, read = make_api(tmp_path), []
    load = Schema.load

    def counted(schema: Schema, *args: Any, **options: Any) -> Any:
        read.append(type(schema).__name__)
        return load(schema, *args, **options)

    monkeypatch.setattr(Schema, "load", counted)
    # No other test has asked so: what was read is kept for each operation of the process.
    query = f"group={uuid.uuid4()}"
    first, again = (api.get(f"/v1/jobs?{query}") for _ in range(2))
    assert (first.status_code, first.json, read) == (200, again.json, ["JobQuery"])
    assert api.get(f"/v1/usage?{query}").status_code == 200
    assert [api.get(f"/v1/jobs?{query}&limit=0").status_code for _ in range(2)] == [422, 422]
    assert read == ["JobQuery", "UsageQuery", "JobQuery", "JobQuery"]


def test_a_value_that_is_a_named_tuple_is_no_value_with_a_status() -> None:
    value, routes, app = PortLoad("eth0", True, True, 5, None, 10.0), resource("loads", "Loads."), Flask("loads")

    def answers(path: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        return operation(routes, "GET", path, name=path[1:], scopes=(), answers={200: PortLoadSchema})

    answers("/value")(lambda: value)
    answers("/made")(lambda: (value, 201, {"Location": "/v1/value"}))
    register(app, (routes,))
    with app.test_client() as client:
        found, made = client.get("/v1/value"), client.get("/v1/made")
    assert (found.status_code, found.json) == (200, PortLoadSchema().dump(value))
    assert (made.status_code, made.headers["Location"], made.json) == (201, "/v1/value", found.json)
