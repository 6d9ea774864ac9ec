"""docker-compose.yml, started: a program that prints what the services answer, as JSON on its last line.

It runs with a network and processes of its own, which end with it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.fake_controls import post_body
from tests.install.engine import ROOT, Engine

CONTROLLER = "http://127.0.0.1:8080"


def answer(url: str, token: str = "", body: str | None = None) -> Any:
    """The answer of a service; None where there is none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "text/plain"
    asked = urllib.request.Request(url, None if body is None else body.encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=10) as answered:
            return json.loads(answered.read())
    except (OSError, ValueError):
        return None


def until(question: Callable[[], Any], seconds: float) -> Any:
    """The first answer that is true, or the last one."""
    deadline = time.monotonic() + seconds
    while not (found := question()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def secrets_commands() -> str:
    """The commands in the file's first lines, up to the start."""
    lines = re.findall(r"(?m)^#   (.*)$", (ROOT / "docker-compose.yml").read_text())
    return "\n".join(lines[: next(place for place, line in enumerate(lines) if "compose up" in line)])


def main() -> None:
    """Start the services, ask them, end them."""
    engine = Engine(Path(sys.argv[1]))
    place = engine.folder / "site"
    shutil.copytree(ROOT / "etc", place / "etc")
    for name in ("docker-compose.yml", "Dockerfile"):
        shutil.copy(ROOT / name, place)
    services = list(yaml.safe_load((place / "docker-compose.yml").read_text())["services"])
    compose = [sys.executable, "-m", "podman_compose"]

    def token(name: str, scope: str) -> str:
        made = engine.run([*compose, "exec", "-T", "controller", "lark", "token", name, "--scope", scope], cwd=place)
        return made.stdout.strip().splitlines()[-1]

    engine.run(["ip", "link", "set", "lo", "up"])
    engine.run(["sh", "-ec", secrets_commands()], cwd=place)
    said: dict[str, Any] = {}
    try:
        engine.run([*compose, "up", "--no-build", "--detach", *services], cwd=place)
        said["readyz"] = until(lambda: answer(f"{CONTROLLER}/readyz"), 90)
        said["healthz"] = answer(f"{CONTROLLER}/healthz")
        (place / "secrets/prometheus_token").write_text(token("prometheus", "read"))
        said["job"] = answer(f"{CONTROLLER}/v1/jobs", token("worker", "hook"), post_body())
        said["health"] = engine.run(["podman", "healthcheck", "run", "lark_controller_1"], check=False).returncode
        asked = "http://127.0.0.1:9090/api/v1/query?query=up%7Bjob%3D%22lark%22%7D%3D%3D1"
        said["up"] = until(lambda: (answer(asked) or {}).get("data", {}).get("result"), 90)
        said["grafana"] = until(lambda: answer("http://127.0.0.1:3000/lark.json"), 30)
        kept = engine.run(
            [*compose, "exec", "-T", "postgres", "psql", "-U", "lark", "-Atc", "SELECT count(*) FROM runs"], cwd=place
        )
        said["runs"] = kept.stdout.strip()
    finally:
        said["log"] = engine.run([*compose, "logs", "controller"], cwd=place, check=False).stdout[-2000:]
        engine.run([*compose, "down", "--volumes"], cwd=place, check=False)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
