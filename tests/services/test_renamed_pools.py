"""External addresses through policies that call their pools otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.errors import ExternalAddressError
from lark_controller.api.external import ExternalWish
from lark_controller.controller import Controller
from tests.fixtures.controllers import POLICY, post, running

SECTION = """external:
  quarantine: 600
  pools: {public: [203.0.113.64/28], spare: [203.0.113.128/28]}
  rules:
    - {pool: public, open: [tcp/80], per_user: 2}
"""
RENAMED = SECTION.replace("public", "outside")
MOVED = SECTION.replace("203.0.113.64/28]", "203.0.113.80/28]").replace("128/28]", "128/28, 203.0.113.64/28]")
MOVED = MOVED.replace("pool: public", "pool: [spare, public]")


def given(controller: Controller, number: int) -> str:
    """The id of an external address that a new job is given."""
    job = post(controller, number, "alice").job
    return controller.external.associate(ExternalWish(job.id), "ops").association.id


def pools(controller: Controller, association_id: str) -> list[str]:
    """The pool of an association by each way to ask."""
    (listed,) = (each for each in controller.external.page().associations if each.id == association_id)
    return [listed.pool, controller.external.find(association_id).pool]


def test_an_address_is_of_the_pool_that_has_it_now(tmp_path: Path) -> None:
    with running(tmp_path, POLICY + SECTION) as controller:
        first = given(controller, 1)
        assert pools(controller, first) == ["public", "public"]
        for section, name in ((RENAMED, "outside"), (MOVED, "spare"), (SECTION, "public")):
            controller.policy.put(POLICY + section, "ops")
            assert pools(controller, first) == [name, name]
            assert {each.name: each.used for each in controller.external.pools()}[name] == 1
    with running(tmp_path, POLICY + RENAMED) as controller:
        # The file was changed while no controller ran.
        assert pools(controller, first) == ["outside", "outside"]
        (has,) = controller.external.page().associations
        again = controller.external.associate(ExternalWish(has.job), "ops")
        assert (again.created, again.association.pool) == (False, "outside")


def test_what_rests_counts_for_its_user_under_another_name_of_the_pool(tmp_path: Path) -> None:
    with running(tmp_path, POLICY + SECTION) as controller:
        for number in (1, 2, 3):
            controller.external.release(given(controller, number), "ops")
        controller.policy.put(POLICY + RENAMED, "ops")
        fourth = given(controller, 4)
        with pytest.raises(ExternalAddressError, match="have 1 external addresses, and 3 of theirs still rest"):
            given(controller, 5)
        # The next one is looked for after the last, as before.
        assert str(controller.external.find(fourth).address) == "203.0.113.67"
