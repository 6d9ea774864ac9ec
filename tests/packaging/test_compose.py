"""docker-compose.yml and the Dockerfile, as far as they can be checked without an engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lark_controller import settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def compose_schema() -> dict[str, Any]:
    """The Compose specification's own schema, which check-jsonschema ships."""
    text = files("check_jsonschema").joinpath("builtin_schemas", "vendor", "compose-spec.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


def test_it_is_valid_compose(compose: dict[str, Any]) -> None:
    validator = jsonschema.validators.validator_for(compose_schema())(compose_schema())
    assert [error.message for error in validator.iter_errors(compose)] == []


def test_the_schema_would_find_a_mistake(compose: dict[str, Any]) -> None:
    broken = {**compose, "services": {"controller": {"prots": ["1:1"]}}}
    validator = jsonschema.validators.validator_for(compose_schema())(compose_schema())
    assert list(validator.iter_errors(broken))


def test_the_controllers_settings_are_accepted(compose: dict[str, Any]) -> None:
    environment = compose["services"]["controller"]["environment"]
    known = {row.variable for row in settings.table()}
    assert set(environment) <= known
    assert settings.load(environment).database_url == environment["LARK_DATABASE_URL"]


def test_haproxy_takes_its_settings_and_names_every_controller(compose: dict[str, Any]) -> None:
    """As they are, in a network of the test's own: HAProxy passes over names that are not there, and says so."""
    path = ROOT / "etc/haproxy/lark.cfg"
    done = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Configuration file is valid" in done.stdout + done.stderr
    servers = re.findall(r"(?m)^    server (\S+) (\S+):8080$", path.read_text())
    controllers = [name for name in compose["services"] if name.startswith("controller")]
    # Those that are ready, and those that live.
    assert servers == [(name, name) for name in controllers] * 2


def test_every_reference_is_declared(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for secret in service.get("secrets", []):
            assert secret in compose["secrets"], name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).exists(), name
        for other in service.get("depends_on", {}):
            assert "healthcheck" in compose["services"][other], name


def test_no_secret_is_in_the_repository(compose: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"(?i)(password|token|secret)\w*\s*[:=]\s*[\"']?[0-9a-f]{8,}", text)
    for service in compose["services"].values():
        assert not [name for name in service["environment"] if name.endswith(("PASSWORD", "TOKEN"))]
    assert ":" not in compose["services"]["controller"]["environment"]["LARK_DATABASE_URL"].split("//")[1].split("@")[0]
    for secret in compose["secrets"].values():
        ignored = subprocess.run(["git", "check-ignore", "--quiet", secret["file"]], cwd=ROOT)
        assert ignored.returncode == 0, f"{secret['file']} is not ignored by git"


def test_the_image_takes_only_what_is_there_and_runs_without_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in lines:
        if line.startswith("COPY ") and "--from=" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line
                assert source in allowed, f"{source} is kept out by .dockerignore"
    assert any("--require-hashes" in line for line in lines)
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    last_user = [line for line in lines if line.startswith("USER ")][-1]
    assert last_user == "USER lark"
    assert all(re.search(r":\S+", line) for line in lines if line.startswith("FROM "))


def test_what_the_image_copies_builds_and_holds_the_command(tmp_path: Path) -> None:
    first_stage = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text())[1]
    source = tmp_path / "src"
    source.mkdir()
    for line in re.findall(r"(?m)^COPY (?!--)(.*)$", first_stage):
        *names, target = line.split()
        for name in names:
            where = source / (Path(name).name if target in {".", "./"} else target)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, where, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, where)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", f"{tmp_path}"]
    (built,) = re.findall(r"(?m)^RUN /opt/lark/bin/pip install --no-deps --no-build-isolation (.*)$", first_stage)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *options, *built.split()]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("lark_controller-*.whl")
    assert len(list(tmp_path.glob("lark_common-*.whl"))) == 1
    with zipfile.ZipFile(wheel) as packed:
        (entries,) = (name for name in packed.namelist() if name.endswith("entry_points.txt"))
        assert "lark = lark_controller.cli.main:main" in packed.read(entries).decode()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-worker.txt", "requirements-dev.txt"])
def test_locks_hold_versions_and_hashes_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*(-i|--index-url|--extra-index-url|--find-links|--trusted-host)", text)
    entries = [line for line in text.replace("\\\n", " ").splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert entries
    assert [line for line in entries if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_lock_covers_what_is_asked_for() -> None:
    def names(path: str) -> set[str]:
        pattern = r"(?m)^([A-Za-z0-9_.-]+)"
        return {name.lower().replace("_", "-") for name in re.findall(pattern, (ROOT / path).read_text())} - {"-r"}

    assert names("requirements.in") <= names("requirements.txt")
    assert names("requirements-worker.in") <= names("requirements-worker.txt")
    assert names("requirements-dev.in") <= names("requirements-dev.txt")
    assert names("requirements.txt") <= names("requirements-dev.txt")


def test_controller_and_worker_service_can_share_a_virtual_environment() -> None:
    def versions(path: str) -> dict[str, str]:
        return dict(re.findall(r"(?m)^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", (ROOT / path).read_text()))

    assert versions("requirements-worker.txt").items() <= versions("requirements-dev.txt").items()
    common = versions("requirements-worker.txt").keys() & versions("requirements.txt").keys()
    assert all(versions("requirements-worker.txt")[name] == versions("requirements.txt")[name] for name in common)
