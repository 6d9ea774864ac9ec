"""The shape of an operation: a Protocol in api/, a class in services/, a route; the controller has none."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import pytest

from lark_controller.api.controls import Controls
from lark_controller.cluster.member import Member
from lark_controller.controller import Controller
from tests.fixtures.controllers import running
from tests.fixtures.fake_controls import FakeControls

REST = Path(__file__).parents[2] / "lark_controller" / "rest"
SUBJECTS = [name for name in vars(Controls) if not name.startswith("_")]


def face(subject: str) -> Any:
    """The Protocol of a subject."""
    return get_type_hints(vars(Controls)[subject].fget)["return"]


def operations(subject: str) -> Iterator[str]:
    return (name for name in vars(face(subject)) if not name.startswith("_"))


def test_the_controller_wires_starts_and_stops() -> None:
    public = {name for name, value in vars(Controller).items() if callable(value) and not name.startswith("_")}
    assert public == {"start", "release", "stop"}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_has_one_file_in_api(subject: str) -> None:
    assert face(subject).__module__ == f"lark_controller.api.{subject}"
    protocols = [
        value
        for value in vars(importlib.import_module(f"lark_controller.api.{subject}")).values()
        if isinstance(value, type) and Protocol in value.__bases__
    ]
    assert protocols == [face(subject)]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_operation_is_asked_by_rest_and_faked_in_one_place(subject: str) -> None:
    asked = "\n".join(path.read_text() for path in REST.rglob("*.py"))
    fake = getattr(FakeControls(), subject)
    for name in operations(subject):
        assert re.search(rf"controls\.{subject}\.{name}\b", asked), name
        assert hasattr(fake, name)


def test_a_subject_is_answered_by_one_class_of_its_services_file(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        for subject in SUBJECTS:
            # One that stands by has no controller, and answers for the instances all the same.
            answers = Member if subject == "instances" else type(getattr(controller, subject))
            # The audit trail is the store's own: nothing stands between.
            room = {"audit": "store.store", "instances": "cluster.member"}.get(subject, f"services.{subject}")
            assert answers.__module__ == f"lark_controller.{room}"
            assert all(hasattr(answers, name) for name in operations(subject))
