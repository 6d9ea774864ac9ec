"""A controller's REST for commands, and a policy file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.rest_socket import served

__all__ = ["policy", "served"]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\n")
    return path
