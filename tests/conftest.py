"""Fixtures that every test may use; each subject's fixtures live in a module of their own."""

from hypothesis import settings

from tests import own_network

own_network.enter()

# How long an example takes depends on what else the machine does.
settings.register_profile("lark", deadline=None)
settings.load_profile("lark")

pytest_plugins = ["tests.postgres", "tests.ovs", "tests.browser", "tests.controllers", "tests.hook"]
