"""The lab's controller from outside: its REST API as the operator, through the lab's byte stream."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from lab.boot import Lab
from lab.inside.topology import OPERATOR_TOKEN, REST_PORT
from lab.run import LabError


def api(lab: Lab, path: str, method: str = "GET", body: str = "", content_type: str = "application/yaml") -> Any:
    """The answer of the controller's API to the operator (JSON). Raises LabError for any other status than 2xx."""
    script = (
        f'exec curl -sS --max-time 30 --fail-with-body -X "$1" -H "Authorization: Bearer $(cat {OPERATOR_TOKEN})"'
        ' -H "Content-Type: $3" --data-binary @- "http://127.0.0.1:$4$2"'
    )
    answer = lab.on(
        "controller", "sh", "-c", script, "lab", method, path, content_type, str(REST_PORT), stdin=body, check=False
    )
    if answer.status != 0:
        raise LabError(f"{method} {path}: {answer.stdout or answer.stderr}")
    return json.loads(answer.stdout)


def jobs(lab: Lab, **filters: str) -> list[Mapping[str, Any]]:
    """The controller's live jobs, or those that ``filters`` (state, owner, group, host) choose."""
    query = "&".join(f"{name}={value}" for name, value in {"limit": "1000", **filters}.items())
    return list(api(lab, f"/v1/jobs?{query}")["jobs"])


def wait_in_sync(lab: Lab, timeout: float = 120.0) -> None:
    """Wait until every switch that the policy names is in sync. Raises LabError, naming those that are not.

    A switch that has refused something is compared again when it is next looked through (LARK_CHECK_SECONDS).
    """
    deadline = time.monotonic() + timeout
    while away := [each for each in api(lab, "/v1/switches")["switches"] if not each["in_sync"]]:
        if time.monotonic() > deadline:
            reasons = "; ".join(f"{each['name']}: {each['reason']}" for each in away)
            raise LabError(f"not in sync within {timeout:g} s: {reasons}")
        time.sleep(0.5)
