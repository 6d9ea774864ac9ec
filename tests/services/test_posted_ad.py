"""The way of a posted ad: the calls that are under way where it changes something."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.classads import ads
from lark_controller.flows.desired import Desired
from lark_controller.reconcile.desired_pair import DesiredPair
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.rest.app import create_app
from lark_controller.rest.tokens import Tokens
from lark_controller.services.feed import Feed
from lark_controller.settings import load
from lark_controller.store import together
from lark_controller.switches.openflow.link import SwitchLink
from tests.fixtures.controllers import an_edge, connect, running
from tests.fixtures.fake_controls import FakeControls, bearer, post_body, write_tokens

ROOT = Path(__file__).parents[2]
# Where the thread of the request begins, and where the loop's does.
BEGINS = (("rest/resources/jobs.py", "register"), ("reconcile/reconciler.py", "put"))
CHANGES = (
    (ads, "parse_post"),
    (together, "at_once"),
    (Feed, "put"),
    (Reconciler, "put"),
    (DesiredPair, "admit"),
    (Desired, "put"),
    (SwitchLink, "apply"),
)


class Way:
    """The files of the calls that were under way, from where a thread begins."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def seen(*args: Any, **options: Any) -> Any:
            self._note(original.__code__.co_filename)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, seen)

    def _note(self, file: str) -> None:
        frame, files = sys._getframe(2), [_short(file)]
        while frame is not None:
            short = _short(frame.f_code.co_filename)
            files += [short] if short else []
            if (short, frame.f_code.co_name) in BEGINS:
                self.files.update(files)
                return
            frame = frame.f_back  # type: ignore[assignment]  # None at the end


def _short(file: str) -> str:
    """As the page names it; ``""`` for a file that is not the project's."""
    path = Path(file)
    if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "tests") or ".venv" in path.parts:
        return ""
    return path.relative_to(ROOT).as_posix().removeprefix("lark_controller/")


def test_a_posted_ad_passes_the_files_that_the_page_names(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text()
    tables, beside = page.split("## A posted ad")[1].split("The barrier's reply")[0].split("Besides these ten")
    steps = set(re.findall(r"`([\w/]+\.py):", tables))
    passing_on = set(re.findall(r"`([\w/]+\.py)`", beside.split("Pure functions")[0]))
    way = Way()
    with running(tmp_path) as controller:
        connect(network, controller, an_edge(0xE1))
        controls = FakeControls()
        controls.jobs = controller.jobs  # type: ignore[assignment]  # the real ones
        app = create_app(controls, load({}), Tokens(write_tokens(tmp_path / "tokens.yaml")))
        for owner, name in CHANGES:
            way.watch(monkeypatch, owner, name)
        body = post_body(1, "alice", "10.64.0.1").replace("job1", "p1")
        answer = app.test_client().post("/v1/jobs", data=body, content_type="text/plain", headers=bearer("hook"))
        assert answer.status_code == 201, answer.text
    assert way.files == steps | passing_on
    assert len(steps) <= 10
    assert len(passing_on) == 4
