"""docker-compose.yml, started: a program that prints what the services answer, as JSON on its last line.

It runs with a network and processes of its own, which end with it. With the profile "several" it asks two controllers.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.fixtures.fake_controls import post_body
from tests.install.engine import ROOT, Engine

CONTROLLER: Final = "http://127.0.0.1:8080"
# Of the profile "several".
SECOND: Final = "http://127.0.0.1:8081"
PROXY: Final = "http://127.0.0.1:8090"


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


def commands() -> tuple[str, str]:
    """The commands in the file's first lines: those before the start, and those after it."""
    text = "".join(line[4:] for line in re.findall(r"(?m)^#   .*\n", (ROOT / "docker-compose.yml").read_text()))
    before, _, after = text.partition("docker compose up --build --detach\n")
    return before, after.partition("docker compose --profile")[0]


class Started:
    """The services of docker-compose.yml, those of ``profiles`` among them, in a copy of the files."""

    def __init__(self, engine: Engine, *profiles: str) -> None:
        self.engine = engine
        self.place = engine.folder / "-".join(("site", *profiles))
        self._before, self._after = commands()
        self._compose = [sys.executable, "-m", "podman_compose"]
        for profile in profiles:
            self._compose += ["--profile", profile]

    def __enter__(self) -> Started:
        shutil.copytree(ROOT / "etc", self.place / "etc")
        for name in ("docker-compose.yml", "Dockerfile"):
            shutil.copy(ROOT / name, self.place)
        self.engine.run(["ip", "link", "set", "lo", "up"])
        self.engine.run(["sh", "-ec", self._before], cwd=self.place)
        self.run("up", "--no-build", "--detach")
        return self

    def __exit__(self, *_: object) -> None:
        self.run("down", "--volumes", check=False)

    def run(self, *words: str, check: bool = True) -> str:
        """The output of compose."""
        return self.engine.run([*self._compose, *words], cwd=self.place, check=check).stdout

    def give_tokens(self) -> str:
        """Give Prometheus its token by the file's commands, and return the one for hooks that they print."""
        docker = f'docker() {{ shift; {shlex.join(self._compose)} "$@"; }}\n'
        return self.engine.run(["sh", "-ec", docker + self._after], cwd=self.place).stdout.strip().splitlines()[-1]

    def token(self, name: str, scope: str) -> str:
        """A token, by the same command."""
        return self.run("exec", "-T", "controller", "lark", "token", name, "--scope", scope).strip().splitlines()[-1]

    def runs(self) -> str:
        """The number of runs in the database."""
        return self.run("exec", "-T", "postgres", "psql", "-U", "lark", "-Atc", "SELECT count(*) FROM runs").strip()


def one(started: Started) -> Iterator[tuple[str, Any]]:
    """The answers of one controller's services."""
    yield "readyz", until(lambda: answer(f"{CONTROLLER}/readyz"), 90)
    yield "healthz", answer(f"{CONTROLLER}/healthz")
    yield "job", answer(f"{CONTROLLER}/v1/jobs", started.give_tokens(), post_body())
    yield "health", started.engine.run(["podman", "healthcheck", "run", "lark_controller_1"], check=False).returncode
    asked = "http://127.0.0.1:9090/api/v1/query?query=up%7Bjob%3D%22lark%22%7D%3D%3D1"
    yield "up", until(lambda: (answer(asked) or {}).get("data", {}).get("result"), 90)
    yield "grafana", until(lambda: answer("http://127.0.0.1:3000/lark.json"), 30)
    yield "runs", started.runs()


def two(started: Started) -> Iterator[tuple[str, Any]]:
    """The answers of the proxy of two controllers, before and after the active one is stopped."""
    both = {"controller": CONTROLLER, "controller2": SECOND}

    def ready() -> list[str]:
        return [name for name, url in both.items() if (answer(f"{url}/readyz") or {}).get("ready")]

    def listed(token: str) -> dict[str, str]:
        found = (answer(f"{PROXY}/v1/instances", token) or {}).get("instances", [])
        return {each["name"]: each["state"] for each in found}

    active = until(ready, 90)
    yield "active", active
    yield "proxy", until(lambda: answer(f"{PROXY}/readyz"), 30)
    reader, hook = started.token("reader", "read"), started.token("worker", "hook")
    yield "instances", until(lambda: len(found := listed(reader)) == len(both) and found, 30)
    yield "job", answer(f"{PROXY}/v1/jobs", hook, post_body())
    started.run("stop", *active)
    yield "taken", until(ready, 60)
    yield "kept", until(lambda: answer(f"{PROXY}/v1/jobs", reader), 30)
    yield "afterwards", listed(reader)
    yield "runs", started.runs()


def main() -> None:
    """Start the services, ask them, end them: composed.py FOLDER [PROFILE]."""
    folder, *profiles = sys.argv[1:]
    said: dict[str, Any] = {}
    with Started(Engine(Path(folder)), *profiles) as started:
        try:
            for name, found in two(started) if profiles else one(started):
                said[name] = found
        finally:
            services = ("controller", "prometheus", *(["controller2", "haproxy"] if profiles else []))
            logs = (started.run("logs", each, check=False)[-2000:] for each in services)
            said["log"] = "\n".join(logs)
            print(said["log"], file=sys.stderr)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
