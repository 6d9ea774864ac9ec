"""Fixtures that every test may use; each subject's fixtures live in a module of their own."""

from importlib.util import find_spec

pytest_plugins = [name for name in ("tests.postgres", "tests.ovs") if find_spec(name) is not None]
