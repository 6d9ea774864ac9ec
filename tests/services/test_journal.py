"""The audit trail of what happens by itself: starts, crashes, switches that go and return, links that fail."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.api.audit import Happening
from lark_controller.api.instances import Term, Why
from lark_controller.controller import Controller
from lark_controller.services.journal import CONTROLLER, Journal
from lark_controller.store import Store
from tests.fixtures.controllers import OPEN, POLICY, a_core, an_edge, connect, running, until

EDGE, CORE = f"{1:016x}", f"{0xC0:016x}"
# What the fake switch says it is.
NAMED = f"fake {EDGE}"


def lines(controller: Controller, subject: str) -> list[tuple[str, str]]:
    """The trail of a subject, the oldest first."""
    return [(each.action, each.detail) for each in controller.audit.page(subject, None, 100).entries][::-1]


def a_journal(path: Path) -> tuple[Store, Journal]:
    """A store of its own, and a journal that writes into it."""
    store = Store.open(f"sqlite:///{path}/lark.db")
    store.migrate()
    journal = Journal(store.trail)
    journal.start()
    return store, journal


def actions(controller: Controller, subject: str) -> list[str]:
    return [action for action, _ in lines(controller, subject)]


def test_starts_and_ends_of_the_controller_and_what_is_between(tmp_path: Path) -> None:
    with running(tmp_path, OPEN) as controller:
        assert actions(controller, CONTROLLER) == ["controller started"]
    with running(tmp_path, OPEN) as controller:
        assert actions(controller, CONTROLLER) == ["controller started", "controller stopped", "controller started"]


def test_a_controller_that_left_no_word_of_its_end_has_ended(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/lark.db")
    store.migrate()
    store.trail.record(time.time(), "controller", "controller started", CONTROLLER)
    store.close()
    with running(tmp_path, OPEN) as controller:
        assert actions(controller, CONTROLLER) == ["controller started", "controller ended", "controller started"]
        assert "ended without saying so" in lines(controller, CONTROLLER)[1][1]


@pytest.mark.parametrize(
    ("why", "silence", "action", "words"),
    [
        (
            Why.SILENT,
            7.4,
            "controller lost",
            "gave no sign of life for 7 s: it stands still, cannot reach the database",
        ),
        (Why.SILENT, None, "controller lost", "gave no sign of life: it stands still, "),
        (Why.ENDED, 1.9, "controller lost", "gave no sign of life for 2 s, and its session with the database ended"),
        (Why.RESTARTED, 3.0, "controller ended", "ended without saying so"),
        (Why.RELEASED, 0.3, "controller ended", "let go in order, and its end was not written here"),
        (Why.DRAINED, 0.3, "controller ended", "let go in order, and its end was not written here"),
        (Why.FIRST, None, "controller ended", "ended without saying so"),
    ],
)
def test_of_one_without_a_word_no_more_is_said_than_is_known(
    tmp_path: Path, why: Why, silence: float | None, action: str, words: str
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/lark.db")
    store.migrate()
    at = time.time()
    store.trail.record(at, "controller", "controller started", CONTROLLER)
    # Of neither of them is that the start.
    store.trail.record(at + 60, "controller", "controller took over", CONTROLLER)
    store.trail.record(at + 120, "lark1", "hand over", CONTROLLER)
    journal = Journal(store.trail)
    journal.start("", Term(2, at, why, "lark1", silence))
    started, told = [each for each in store.trail.page(CONTROLLER, None, 100).entries if each.number in (4, 5)]
    assert (told.action, started.action) == (action, "controller started")
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
    assert told.detail.startswith(f"the one that started at {shown} UTC {words}")
    journal.stop()
    store.close()


def test_a_switch_that_goes_and_returns(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        network.run(edge.disconnect)
        until(lambda: actions(controller, EDGE) == ["switch gone"])
        connect(network, controller, edge)
        until(lambda: actions(controller, EDGE) == ["switch gone", "switch returned"])
        assert "connected again after" in lines(controller, EDGE)[1][1]
    # Connections that the controller ends itself are no events, and a first connection is none.
    with running(tmp_path, OPEN) as controller:
        connect(network, controller, edge)
        assert actions(controller, EDGE) == ["switch gone", "switch returned"]


def test_links_of_workers_and_cores_that_go_down_and_come_up(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY) as controller:
        edge, core = an_edge(), a_core()
        connect(network, controller, edge)
        connect(network, controller, core)
        # The port of a job is not a link: it comes and goes with its job.
        for switch, subject, number, noted in (
            (edge, EDGE, 11, 0),
            (edge, EDGE, 1, 2),
            (core, CORE, 1, 2),
            (core, CORE, 2, 4),
        ):
            old = switch.ports[number]
            network.run(partial(switch.change_port, replace(old, up=False)))
            until(lambda subject=subject, noted=noted: len(lines(controller, subject)) >= noted - 1)  # type: ignore[misc]
            if noted:
                (problem,) = controller.switches.find(subject).problems
                assert controller.switches.names([subject, "00000000000000ab"]) == {
                    subject: controller.switches.find(subject).name
                }
                assert old.name in problem.problem or "WAN port wan" in problem.problem
                assert "is down" in problem.problem
            network.run(partial(switch.change_port, old))
            until(lambda subject=subject, noted=noted: len(lines(controller, subject)) == noted)  # type: ignore[misc]
            assert controller.switches.find(subject).problems == ()
        assert lines(controller, EDGE) == [
            ("link down", f"uplink uplink of {NAMED} is down"),
            ("link up", f"uplink uplink of {NAMED} is up again"),
        ]
        assert lines(controller, CORE) == [
            ("link down", "LAN port a of core1 is down"),
            ("link up", "LAN port a of core1 is up again"),
            ("link down", "WAN port wan of core1 is down; nothing takes its place"),
            ("link up", "WAN port wan of core1 is up again"),
        ]


def are_told(controller: Controller, problems: set[str]) -> bool:
    return {each.problem for each in controller.switches.find(CORE).problems} == problems


def test_a_wan_port_that_is_down_names_the_port_that_is_used_now(tmp_path: Path, network: FakeNetwork) -> None:
    hops = [f'next_hop: "02:00:00:00:ff:0{number}"' for number in (1, 2)]
    ports = f"wan: {{port: 2, {hops[0]}, backup: wan-fast}}, wan-fast: {{port: 3, {hops[1]}, backup: wan}}"
    mutual = f"ports: {{lan: 1, {ports}}}"
    policy = POLICY.replace("ports: {lan: 1, wan: 2, wan-fast: 3}", mutual)
    assert policy != POLICY
    with running(tmp_path, policy) as controller:
        core = a_core()
        connect(network, controller, core)
        for number, up, problems in (
            (2, False, {"WAN port wan is down; wan-fast is used"}),
            (3, False, {f"WAN port {name} is down; nothing takes its place" for name in ("wan", "wan-fast")}),
            (2, True, {"WAN port wan-fast is down; wan is used"}),
        ):
            network.run(partial(core.change_port, replace(core.ports[number], up=up)))
            until(partial(are_told, controller, problems))
        controller.policy.put(policy.replace(", backup: wan}", "}"), "test")
        until(lambda: "nothing takes its place" in str(controller.switches.find(CORE).problems))


def test_a_port_that_is_no_link_any_longer_has_neither_gone_nor_come(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY) as controller:
        core = a_core()
        connect(network, controller, core)
        network.run(partial(core.change_port, replace(core.ports[3], up=False)))
        until(lambda: len(controller.switches.find(CORE).problems) == 1)
        controller.policy.put(POLICY.replace("ports: {lan: 1, wan: 2, wan-fast: 3}", "ports: {lan: 1, wan: 2}"), "test")
        until(lambda: controller.switches.find(CORE).problems == ())
        network.run(partial(core.change_port, replace(core.ports[2], up=False)))
        until(lambda: len(controller.switches.find(CORE).problems) == 1)
        until(lambda: len(lines(controller, CORE)) >= 3)
        assert [detail for _, detail in lines(controller, CORE)] == [
            "WAN port wan-fast of core1 is down; nothing takes its place",
            "WAN port wan-fast of core1 is down, and no link of the policy any more",
            "WAN port wan of core1 is down; nothing takes its place",
        ]


def test_a_link_that_a_policy_has_no_more_has_its_end_and_begins_anew(tmp_path: Path, network: FakeNetwork) -> None:
    fewer = POLICY.replace("ports: {lan: 1, wan: 2, wan-fast: 3}", "ports: {lan: 1, wan: 2}")
    with running(tmp_path, POLICY) as controller:
        core = a_core()
        connect(network, controller, core)

        def becomes(up: bool) -> None:
            network.run(partial(core.change_port, replace(core.ports[3], up=up)))

        def told(*expected: str) -> None:
            until(lambda: actions(controller, CORE) == [f"link {each}" for each in expected])

        becomes(False)
        told("down")
        controller.policy.put(fewer, "test")
        told("down", "not watched")
        becomes(True)
        controller.policy.put(POLICY, "test")
        becomes(False)
        told("down", "not watched", "down")
        # It is down when it is watched again.
        controller.policy.put(fewer, "test")
        told("down", "not watched", "down", "not watched")
        controller.policy.put(POLICY, "test")
        told("down", "not watched", "down", "not watched", "down")
        assert {each.problem for each in controller.switches.find(CORE).problems} == {
            "WAN port wan-fast is down; nothing takes its place"
        }
        becomes(True)
        told("down", "not watched", "down", "not watched", "down", "up")
        # The next controller knows that it was told, and so it ends while the switch is away.
        becomes(False)
        told("down", "not watched", "down", "not watched", "down", "up", "down")
    with running(tmp_path, POLICY) as controller:
        connect(network, controller, core)
        until(lambda: controller.switches.find(CORE).problems != ())
        network.run(core.disconnect)
        until(lambda: actions(controller, CORE)[7:] == ["switch gone"])
        core.ports[3] = replace(core.ports[3], up=True)
        connect(network, controller, core)
        until(lambda: actions(controller, CORE)[7:] == ["switch gone", "switch returned", "link up"])


def test_a_link_that_is_down_at_first_is_told_as_down(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY) as controller:
        core = a_core()
        for number in (1, 3):
            core.ports[number] = replace(core.ports[number], up=False)
        connect(network, controller, core)
        until(lambda: actions(controller, CORE) == ["link down"] * 2)
        for number in (1, 3):
            network.run(partial(core.change_port, replace(core.ports[number], up=True)))
        until(lambda: actions(controller, CORE) == ["link down"] * 2 + ["link up"] * 2)


def test_what_another_policy_asked_in_vain_is_no_problem_any_longer(tmp_path: Path, network: FakeNetwork) -> None:
    groups = "groups:\n  group_cms: {port: wan, guarantee: 50Mbit, ceiling: 100Mbit}\n"
    with running(tmp_path, POLICY + groups) as controller:
        connect(network, controller, a_core())
        until(lambda: "guarantee 50 Mb/s is not given" in str(controller.switches.find(CORE).problems))
        controller.policy.put(POLICY + groups.replace("50Mbit", "40Mbit"), "test")
        until(lambda: "guarantee 40 Mb/s is not given" in str(controller.switches.find(CORE).problems))
        assert len(controller.switches.find(CORE).problems) == 1


def test_a_link_that_comes_and_goes_does_not_fill_the_trail(tmp_path: Path) -> None:
    store, journal = a_journal(tmp_path)
    for _ in range(250):
        journal.note(Happening(EDGE, "link down", "uplink eth0 of worker1 is down"))
        journal.note(Happening(EDGE, "link up", "uplink eth0 of worker1 is up again"))
    journal.note(Happening(CORE, "switch gone"))
    for number in range(500):
        journal.note(Happening("names", "link down", f"uplink {number} of worker1 is down"))
    journal.stop()
    last, *kept = store.trail.page(EDGE, None, 1000).entries
    assert [each.action for each in kept] == ["link up", "link down"] * 10
    # The trail ends with what is so.
    assert last.action == "link up"
    assert last.detail == "uplink eth0 of worker1 is up again (479 lines before it were left out)"
    assert len(store.trail.page(CORE, None, 10).entries) == 1
    names = store.trail.page("names", None, 1000).entries
    assert len(names) == 20 + 16
    assert names[0].detail == "uplink 499 of worker1 is down"
    store.close()


def test_a_line_that_was_held_back_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.services.journal._RATE", 2.0)
    monkeypatch.setattr("lark_controller.services.journal._ROOM", 0.1)
    store, journal = a_journal(tmp_path)
    for _ in range(12):
        journal.note(Happening(EDGE, "link down", "uplink eth0 of worker1 is down"))
        journal.note(Happening(EDGE, "link up", "uplink eth0 of worker1 is up again"))

    def ends() -> bool:
        return store.trail.page(EDGE, None, 1).entries[0].detail.endswith("left out)")

    until(ends)
    journal.stop()
    assert store.trail.page(EDGE, None, 1).entries[0].action == "link up"
    store.close()


def test_what_happens_while_the_database_is_away_is_written_afterwards(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        (tmp_path / "lark.db").rename(tmp_path / "away.db")
        try:
            network.run(edge.disconnect)
            until(lambda: not controller.switches.find(EDGE).connected)
        finally:
            (tmp_path / "away.db").rename(tmp_path / "lark.db")
        until(lambda: actions(controller, EDGE) == ["switch gone"])
