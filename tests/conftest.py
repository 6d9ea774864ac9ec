"""Fixtures that every test may use; each subject's fixtures live in a module of their own."""

from tests import own_network

own_network.enter()

pytest_plugins = ["tests.postgres", "tests.ovs", "tests.browser"]
