"""Hosts whose names the policy writes in another case than their workers: they are the same hosts everywhere."""

from __future__ import annotations

import re

from tests.fixtures.browser import POLICY, WORKER1, Site
from tests.fixtures.controllers import until
from tests.fixtures.service import Json

OTHER = POLICY.replace("host: worker1.example", "host: Worker1.EXAMPLE").replace(
    "    files.example:", "    WORKER1.example: {switch: rack1, capacity: 2Gbit}\n    files.example:"
)


def run(site: Site, kind: str) -> Json:
    """A run on worker1, whose ad names no switch."""
    ads = re.sub("LarkDatapathId.*\n", "", site.ads("bob")).replace('"ovs_bridge"', f'"{kind}"')
    answer = site.lark.post(ads, 0)
    assert answer.status == 201, answer
    assert isinstance(answer.body, dict)
    return answer.body


def test_a_host_is_the_same_in_any_case(site: Site) -> None:
    site.lark.put_policy(OTHER)
    bridged, switched = run(site, "bridge"), run(site, "ovs_bridge")
    # By its host alone its switch is found.
    until(lambda: site.lark.get(f"/v1/jobs/{switched['id']}")["state"] == "enforced")
    switch = site.lark.get("/v1/switches/worker1.example")
    assert (switch["datapath"], switch["host"]) == (f"{WORKER1:016x}", "Worker1.EXAMPLE")
    assert (switch["state"], switch["waiting"], switch["jobs"]) == ("jobs wait", 1, 1)
    site.passed(switched | {"datapath": switch["datapath"]}, 300, 200)

    def drawn() -> list[Json]:
        """The worker on the map, once: with the jobs at its switch and at none, its rate and its link."""
        edges = site.lark.get("/v1/map")["edges"]
        return [each for each in edges if "worker1" in each["name"].lower()]

    until(lambda: drawn()[0]["rate"]["outward"] > 0)
    (edge,) = drawn()
    assert (edge["state"], edge["jobs"], edge["capacity"]) == ("jobs wait", 2, 2000)
    for name in ("worker1.example", "Worker1.EXAMPLE", "WORKER1", "worker1"):
        found = {each["id"] for each in site.lark.get(f"/v1/jobs?host={name}")["jobs"]}
        assert found == {bridged["id"], switched["id"]}, name
    path = site.lark.get(f"/v1/explain?src={switched['id']}&dst=198.51.100.1")
    assert path["verdict"] == "dropped", path

    def dropped() -> list[tuple[str, str, str, bool]]:
        """The drops, by the counters of the switch that was found, which tell rules apart."""
        site.sends(switched | {"datapath": switch["datapath"]}, "198.51.100.1", 5)
        found = site.lark.get("/v1/drops")["drops"]
        return [(each["job"], each["kind"], each["datapath"], each["estimated"]) for each in found]

    until(lambda: dropped() == [(switched["id"], "wan", switch["datapath"], False)])
