"""The controller explains what becomes of a packet, by what fake switches hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from tests.fixtures.controllers import (
    POLICY,
    a_core,
    an_edge,
    connect,
    post,
    running,
)


def test_explain_says_who_and_why(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "alice"), (3, "bob")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        good = controller.switches.explain("10.64.0.1", "10.64.0.2", 5)
        assert good.verdict == "forwarded"
        assert good.steps[0].text.endswith(", enforced")
        bad = controller.switches.explain("10.64.0.1", "10.64.0.3", 5)
        assert bad.verdict == "dropped"
        assert "slice-from" in bad.reason
        assert any('Owner = "alice"' in step.text for step in bad.steps)
        wan = controller.switches.explain(controller.jobs.at("10.64.0.3").job.id, "192.0.2.1", 5)
        assert (wan.verdict, "wan drop" in wan.reason) == ("dropped", True)
        for src, dst in (("10.64.0.9", "192.0.2.1"), ("10.64.0.1", "10.64.0.9"), ("192.0.2.1", "10.64.0.9")):
            nobody = controller.switches.explain(src, dst, 5)
            assert nobody.verdict == "dropped"
            assert "10.64.0.9" in nobody.reason


@pytest.mark.parametrize(("kind", "rest"), [("block", ""), ("connectivity", ", inbound: deny, outbound: deny")])
def test_explain_names_the_rule_that_takes_all_network_away(
    tmp_path: Path, network: FakeNetwork, kind: str, rest: str
) -> None:
    rule = f"  - {kind}: {{when: 'Owner == \"zoe\"'{rest}}}\n"
    with running(tmp_path, POLICY + rule) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (3, "zoe")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        for pair in (("10.64.0.1", "10.64.0.3"), ("10.64.0.3", "10.64.0.1")):
            found = controller.switches.explain(*pair, 5)
            assert found.verdict == "dropped"
            assert f'by {kind} when Owner == "zoe" (policy line' in found.reason
            # It is confirmed by its switch, and may nothing; and reasons name it as its user does.
            (zoe,) = (step.text for step in found.steps if "10.64.0.3 is job 3.0 " in step.text)
            assert zoe.endswith(", blocked")
            assert any(step.text.startswith(f"job 3.0: {kind} rule ") for step in found.steps)
