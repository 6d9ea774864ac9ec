"""Container images under the names that the Dockerfile and docker-compose.yml use, made of Debian packages.

They stand in for the published ones, since no registry of images is asked, so that the files can be run unchanged:
the same programs, from the Debian release that has the version nearest to the published one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab import rootfs
from lab.run import run
from lab.settings import LabSettings, from_environment
from tests.install.engine import ROOT, TIMEOUT, Engine

# What PostgreSQL's published image does at its first start, as far as docker-compose.yml asks for it.
_POSTGRES: Final = """#!/bin/sh
set -e
data=/var/lib/postgresql/data
bin=$(echo /usr/lib/postgresql/*/bin)
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$data" /run/postgresql
    chown postgres "$data" /run/postgresql
    chmod 700 "$data"
    cp "$POSTGRES_PASSWORD_FILE" /tmp/password
    chown postgres /tmp/password
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$data/PG_VERSION" ]; then
    "$bin/initdb" -D "$data" -U "$POSTGRES_USER" -E UTF8 --locale=C.UTF-8 --pwfile=/tmp/password \\
        --auth-local=trust --auth-host=scram-sha-256 >/dev/null
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    "$bin/pg_ctl" -D "$data" -o "-c listen_addresses=" -w start >/dev/null
    "$bin/createdb" -U "$POSTGRES_USER" "$POSTGRES_DB"
    "$bin/pg_ctl" -D "$data" -w stop >/dev/null
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*'
"""
# Debian has no Grafana: what stands in its place shows that its files and secret are there, and answers.
_GRAFANA: Final = """#!/bin/sh
set -e
test -s /run/secrets/grafana_password
test -s /var/lib/grafana/dashboards/lark.json
test -d /etc/grafana/provisioning/dashboards
cd /var/lib/grafana/dashboards
exec python3 -m http.server 3000
"""
# The published image's own entry point is a shell script as well; its settings are where it looks for them.
_HAPROXY: Final = """#!/bin/sh
exec haproxy -W -db -f /usr/local/etc/haproxy/haproxy.cfg
"""


@dataclass(frozen=True, slots=True)
class Base:
    """An image by its published name: packages of a Debian release, and its entry point with its text if a script."""

    name: str
    suite: str
    packages: tuple[str, ...]
    entry: tuple[str, ...]
    script: str = ""


BASES: Final = (
    Base(
        "docker.io/library/python:3.12-slim-bookworm", "bookworm", ("ca-certificates", "python3", "python3-venv"),
        ("/bin/sh",),
    ),
    Base("docker.io/library/postgres:17-bookworm", "trixie", ("postgresql", "util-linux"), ("/entry",), _POSTGRES),
    Base("docker.io/library/haproxy:3.2", "forky", ("haproxy",), ("/entry",), _HAPROXY),
    Base("docker.io/prom/prometheus:v3.15.0", "forky", ("prometheus", "ca-certificates"), ("/usr/bin/prometheus",)),
    Base("docker.io/grafana/grafana:13.2.3", "bookworm", ("python3",), ("/entry",), _GRAFANA),
)  # fmt: skip
# `python` is the name of the program in the published image; the build trusts the authorities that the machine trusts.
_SETUP: Final = """set -e
! [ -e "$1/usr/bin/python3" ] || ln -sf python3 "$1/usr/bin/python"
rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$1/etc/resolv.conf"
"""

_UNWANTED: Final = ("--exclude=./var/cache/apt", "--exclude=./var/lib/apt/lists")
# Health checks call pg_isready, which Debian has there.
_PATH: Final = "/usr/lib/postgresql/17/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TRUST: Final = """\
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""


def made(settings: LabSettings, base: Base) -> Path:
    """The root file system of an image; made once, and kept in ``LAB_CACHE``."""
    key = hashlib.sha256("\0".join((base.suite, *base.packages, _SETUP, settings.mirror)).encode()).hexdigest()[:16]
    path = settings.cache / f"image-{key}"
    options = [f"--customize-hook={_SETUP}"]
    return rootfs.bootstrap(settings, path, base.packages, base.suite, options=options, finish=lambda found: None)


def build(engine: Engine, settings: LabSettings, image: str) -> None:
    """Make the images that the files name, and the controller's from the Dockerfile as it is."""
    for base in BASES:
        root = made(settings, base)
        with tempfile.TemporaryDirectory(dir=engine.folder) as folder:
            archive = Path(folder, "root.tar")
            run(["tar", "-C", str(root), *_UNWANTED, "-cf", str(archive), "."], timeout=TIMEOUT)
            if base.script:
                entry = Path(folder, "entry")
                entry.write_text(base.script)
                entry.chmod(0o755)
                run(["tar", "-C", folder, "-rf", str(archive), "./entry"], timeout=TIMEOUT)
            change = f"ENTRYPOINT {json.dumps(base.entry)}"
            engine.run(["podman", "import", "--change", change, "--change", f"ENV PATH={_PATH}", archive, base.name])
    # The build asks PyPI; it trusts whom this machine trusts.
    with tempfile.TemporaryDirectory(dir=engine.folder) as folder:
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", folder)
        Path(folder, "Dockerfile").write_text(f"FROM {BASES[0].name}\n{_TRUST}")
        engine.run(["podman", "build", "--network", "host", "--format", "docker", "-t", BASES[0].name, folder])
    # This format keeps HEALTHCHECK.
    engine.run(["podman", "build", "--network", "host", "--format", "docker", "-t", image, ROOT])


def main() -> None:
    """Make all in a store of images; the tests' own network leads to no mirror, so this is a program of its own."""
    folder, image = sys.argv[1:]
    build(Engine(Path(folder)), from_environment(), image)


if __name__ == "__main__":
    main()
