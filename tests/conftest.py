"""Fixtures that every test may use; each subject's fixtures live in a module of their own."""

import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.fixtures import own_network

own_network.enter()

# A shell that starts this in the background has it ignore Ctrl-C, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does. Every machine tries the same examples;
# `--hypothesis-profile=random` tries others each time.
settings.register_profile("lark", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("lark")

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.ovs",
    "tests.fixtures.browser",
    "tests.fixtures.controllers",
    "tests.fixtures.hook",
    "tests.fixtures.again",
]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the process a directory of its own for what tests write.

    Each pytest that starts on a machine closes pytest's own one to all other users, and jobs' users are such.
    """
    if config.option.basetemp is None:
        config.option.basetemp = directory = tempfile.mkdtemp(prefix="lark-tests-", dir="/tmp")
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


@pytest.fixture(autouse=True)
def _no_log_of_a_test_before() -> Iterator[None]:
    """Take a test's own log away with it: each later event would tell, slowly, that its stream is closed."""
    yield
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if type(each) is not logging.StreamHandler]
