"""One lab for all tests in this directory; its logs are kept when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.boot import Lab
from lab.settings import from_environment


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A pool with two workers. A test leaves it as it found it: machines on, queue empty."""
    before = request.session.testsfailed
    lab = Lab.start(from_environment())
    keep = True
    try:
        lab.start_pool()
        yield lab
        keep = request.session.testsfailed > before
    finally:
        lab.stop(keep=keep)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that uses the lab is marked so."""
    for item in items:
        if "lab" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")
