"""The controller's answers to a user who sees own jobs alone, on fake switches."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import NotFoundError
from lark_controller.api.external import ExternalWish
from tests.fixtures.controllers import OPEN, a_core, an_edge, connect, post, running, until
from tests.services.test_drops import POLICY, sends


def test_explanations_say_nothing_of_others(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        jobs = {}
        for number, owner in ((1, "alice"), (2, "alice"), (3, "bob")):
            jobs[number] = post(controller, number, owner).job
            controller.jobs.confirm(jobs[number].id, 20)
        explain = controller.switches.explain
        good = explain("10.64.0.1", "10.64.0.2", 5, "alice")
        assert (good.verdict, good.reason) == ("forwarded", "the network passes it on")
        assert any('Owner = "alice"' in step.text for step in good.steps)
        for src, dst in (("10.64.0.1", "10.64.0.3"), ("10.64.0.3", "10.64.0.1"), (jobs[1].id, "10.64.0.3")):
            whole, own = explain(src, dst, 5), explain(src, dst, 5, "alice")
            assert whole.verdict == own.verdict == "dropped"
            assert "bob" in str(whole)
            for secret in ("bob", jobs[3].id, jobs[3].run.slot, "slice-from"):
                assert secret not in str(own)
        # An address of another's job and one of nobody's are told in the same words.
        other, nobody = explain("10.64.0.1", "10.64.0.3", 5, "alice"), explain("10.64.0.1", "10.64.0.9", 5, "alice")
        assert str(other).replace("10.64.0.3", "10.64.0.9") == str(nobody)
        for src, dst in (("10.64.0.3", "192.0.2.1"), ("10.64.0.3", "10.64.0.9"), ("192.0.2.1", "192.0.2.2")):
            with pytest.raises(NotFoundError):
                explain(src, dst, 5, "alice")


def test_a_live_job_is_found_by_its_external_addresses(tmp_path: Path, network: FakeNetwork) -> None:
    pools = "external: {pools: {public: [203.0.113.64/29]}, rules: [{pool: public, open: [tcp/80], per_user: 9}]}\n"
    with running(tmp_path, OPEN + pools) as controller:
        connect(network, controller, an_edge())
        alice, bob = (post(controller, number, owner).job for number, owner in ((1, "alice"), (2, "bob")))
        given = [controller.external.associate(ExternalWish(job.id), "test").association for job in (alice, bob)]
        for job, one in zip((alice, bob), given, strict=True):
            found = controller.jobs.at(str(one.address), job.owner).job
            assert (found.id, found.external_addresses) == (job.id, (one.address,))
            assert controller.jobs.at(str(one.address)).job.id == job.id
        for address, owner in ((given[1].address, "alice"), ("203.0.113.66", None)):
            with pytest.raises(NotFoundError, match=f"no live job has the address {address}"):
                controller.jobs.at(str(address), owner)
        # One that rests is nobody's.
        controller.external.release(given[0].id, "test")
        with pytest.raises(NotFoundError):
            controller.jobs.at(str(given[0].address))


def test_names_and_addresses_are_those_of_own_jobs(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        alice, bob = (post(controller, number, owner).job for number, owner in ((1, "alice"), (2, "bob")))
        named = controller.jobs.named
        for word in (alice.id, alice.id[:6], "1.0", alice.run.global_job_id):
            assert named(word, "alice") == alice.id
            with pytest.raises(NotFoundError):
                named(word, "bob")
        assert controller.jobs.at(str(alice.ipv4), "alice").job.id == alice.id
        with pytest.raises(NotFoundError) as other:
            controller.jobs.at(str(bob.ipv4), "alice")
        with pytest.raises(NotFoundError) as nobody:
            controller.jobs.at("10.64.0.99", "alice")
        assert str(other.value).replace(str(bob.ipv4), "") == str(nobody.value).replace("10.64.0.99", "")
        with pytest.raises(NotFoundError) as unknown:
            named("00000000000000ff", "alice")
        with pytest.raises(NotFoundError) as others:
            named(bob.id, "alice")
        assert str(unknown.value).replace("00000000000000ff", "") == str(others.value).replace(bob.id, "")
        # Ended jobs are found as live ones are.
        controller.jobs.end(alice.id, "test")
        assert named("1.0", "alice") == alice.id


def test_drops_are_those_of_own_jobs(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        mallory, bob = (post(controller, number, owner).job for number, owner in ((1, "mallory"), (2, "bob")))
        for job in (mallory, bob):
            controller.jobs.confirm(job.id, 20)

        def both() -> bool:
            for job in (mallory, bob):
                sends(network, edge, job, "192.0.2.1")
            whole, own = controller.drops.now(10), controller.drops.now(10, "bob")
            if {each.owner for each in whole.drops} != {"bob", "mallory"} or not own.drops:
                return False
            assert {each.owner for each in own.drops} == {"bob"}
            return own.jobs == 1

        until(both)
        assert controller.drops.now(10, "nobody").drops == ()
