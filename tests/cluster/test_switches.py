"""The generation of a term reaches the switches, and an instance whose term is over sends them nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.instances import Identity, Why
from lark_controller.cli.run import Service
from lark_controller.store import Store
from lark_controller.switches.openflow.loop_thread import KeptSwitches
from lark_controller.switches.openflow.roles import MASTER, Role
from tests.cluster.test_members import joined
from tests.fixtures.controllers import an_edge, until
from tests.store.test_claim import settings

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_server: Any) -> Iterator[str]:
    made = postgres_server.new_database()
    yield made
    postgres_server.drop_database(made)


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    with FakeNetwork() as made:
        yield made


def connect(network: FakeNetwork, service: Service, switch: FakeSwitch) -> None:
    network.call(switch.connect(*service.controller.openflow_addresses[0]))
    until(lambda: service.controller.switches.find(f"{switch.datapath:016x}").in_sync)


def test_each_term_has_a_higher_generation_at_the_switches(url: str, tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_edge()
    seen = []
    for _ in range(2):
        service = Service(settings(tmp_path, LARK_DATABASE_URL=url))
        service.start()
        connect(network, service, edge)
        assert edge.masters.generation == service.term.generation
        seen.append(service.term.generation)
        service.stop()
        network.call(edge.closed.wait())
    assert seen == sorted(set(seen))


def test_an_instance_that_was_followed_lets_its_switches_go(url: str, tmp_path: Path, network: FakeNetwork) -> None:
    lost: list[str] = []
    service = Service(settings(tmp_path, LARK_DATABASE_URL=url), lost=lost.append)
    service.start()
    edge = an_edge()
    connect(network, service, edge)
    other = Store.open(url)
    me = Identity("b1", "b", "http://b", "1")
    other.instances.register(me)
    assert other.instances.take(me, service.term.generation, Why.SILENT) is not None
    # Its next sign of life finds it; no write of the switches is needed for that.
    network.call(edge.closed.wait())
    until(lambda: lost)
    assert "has taken over" in lost[0]
    service.stop()
    # It has let go of nothing that is another's.
    assert other.instances.all().active == "b1"
    other.close()


def test_a_switch_that_shows_a_later_generation_ends_no_term(url: str, tmp_path: Path, network: FakeNetwork) -> None:
    """A switch may lie, or come from elsewhere: the database says whose term it is."""
    lost: list[str] = []
    service = Service(settings(tmp_path, LARK_DATABASE_URL=url), lost=lost.append)
    service.start()
    strange, edge = an_edge(9), an_edge()
    stranger = strange.another()
    strange.masters.opened(stranger)
    strange.masters.ask(stranger, Role(MASTER, service.term.generation + 1000))
    network.call(strange.connect(*service.controller.openflow_addresses[0]))
    network.call(strange.closed.wait())
    connect(network, service, edge)
    assert service.store.instances.all().generation == service.term.generation
    service.store.check_writes()
    assert not lost
    service.stop()


def test_what_is_handed_on_ends_with_the_term(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(KeptSwitches, "end_relays", lambda _kept: ended.set())
    with joined(url, "a") as (a,):
        assert a.generation
        service = Service(settings(tmp_path, LARK_DATABASE_URL=url))
        service.stand_by()
        until(lambda: service.member.standing().name == "a")
        ended.clear()
        # Whoever takes over now.
        a.leave()
        until(ended.is_set)
        service.stop()
