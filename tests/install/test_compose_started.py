"""The image built from the Dockerfile, and docker-compose.yml started, both as they are.

No registry of images is asked: the images that the files name are made of Debian packages under their names. So Python,
PostgreSQL and Prometheus are Debian's, and in Grafana's place is a server of files, since Debian has no Grafana.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures import own_network
from tests.install.engine import ALONE, ROOT


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of podman's images."""
    folder: Path = tmp_path_factory.mktemp("pod")
    image = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["controller"]["image"]
    built = own_network.run_outside(
        [*ALONE, sys.executable, "-m", "tests.install.base_images", str(folder), image], mounts=True
    )
    assert built.returncode == 0, built.stdout
    return folder


def started(images: Path, *profiles: str) -> dict[str, Any]:
    """The services' answers."""
    # A run that is killed takes its containers with it.
    alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = own_network.run_outside(
        [*alone, *ALONE, sys.executable, "-m", "tests.install.composed", str(images), *profiles], mounts=True
    )
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def composed(images: Path) -> dict[str, Any]:
    """The answers with one controller."""
    return started(images)


def test_the_controller_answers_with_its_own_postgresql(composed: dict[str, Any]) -> None:
    assert composed["readyz"] == {"ready": True, "reasons": []}, composed["log"]
    assert composed["healthz"] == {"status": "ok"}
    assert composed["health"] == 0


def test_a_job_is_posted_and_kept_in_the_database(composed: dict[str, Any]) -> None:
    assert composed["job"]["state"] in ("registering", "pending"), "no switch is there"
    assert composed["runs"] == "1"


def test_prometheus_reads_the_controllers_metrics_with_its_token(composed: dict[str, Any]) -> None:
    assert [each["metric"]["instance"] for each in composed["up"]] == ["controller:8080"]


def test_grafana_would_find_its_dashboard_and_secret(composed: dict[str, Any]) -> None:
    assert composed["grafana"] == json.loads((ROOT / "etc/grafana/lark.json").read_text())


def test_of_two_controllers_one_is_active_and_the_other_takes_over_behind_the_proxy(
    images: Path, composed: dict[str, Any]
) -> None:
    """The services of one have ended: both take the same ports."""
    found = started(images, "several")
    (active,) = found["active"]
    (other,) = {"controller", "controller2"} - {active}
    assert found["proxy"]["ready"] is True, found["log"]
    assert found["instances"] == {active: "active", other: "standby"}
    assert found["job"]["state"] in ("registering", "pending"), found["job"]
    assert found["taken"] == [other], found["log"]
    assert [job["id"] for job in found["kept"]["jobs"]] == [found["job"]["id"]]
    assert found["afterwards"][other] == "active"
    assert found["runs"] == "1"
