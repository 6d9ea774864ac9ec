"""The texts of the files that ``lark setup`` makes: settings of controller and worker service, and a first policy."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lark_common.errors import SettingError
from lark_common.runs import Address, Network
from lark_common.settings_table import lines_of
from lark_controller.settings import Listen, Settings, load

REST_PORT: Final = 8443
OPENFLOW_PORT: Final = 6653
# The settings of workers that join.
JOIN_SETTINGS: Final = "join.env"
# Where everything is on a worker, and on a controller's host where no other place is given.
PLACE: Final = Path("/etc/lark")

# Networks that are nobody's WAN, wherever they are.
_PRIVATE: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
_QUOTED: Final = re.compile(r"[\s\"'\\]")

_POLICY: Final = """\
# Made by `lark setup`, and yours from now on. docs/reference/policy.md explains every key, `lark check FILE` finds
# every mistake, and a running controller reads the file again when it changes.
# yaml-language-server: $schema=policy.schema.json
version: 1

networks:
  # Where jobs get addresses.
  jobs: [{jobs}]
  # Addresses in there that are no job's: gateways, name servers. Jobs of every slice reach them.
  hosts: [{hosts}]
  # These are not the WAN: add the site's public networks.
  local: [{local}]

# On workers' bridges: which ports lead away from the worker.
edge:
  uplinks: ["uplink*", "eth*", "en*", "bond*"]

# Core switches, each with its ports, and the next_hop of each WAN port:
# switches:
#   core1:
#     datapath: "00000000000000c0"
#     role: core
#     ports: {{lan: 1, wan: {{port: 2, next_hop: "02:00:00:00:00:01"}}}}

policies:
  # No traffic between jobs of different users.
  - slice: {{by: Owner}}
  # InboundConnectivity and OutboundConnectivity of the job ad decide.
  - connectivity: {{inbound: requested, outbound: requested}}
"""


def policy(networks: Sequence[Network], hosts: Sequence[Address]) -> str:
    """A first policy, with these networks of jobs."""
    local = [*map(str, networks), *(each for each in _PRIVATE if each not in map(str, networks))]
    return _POLICY.format(jobs=_listed(networks), hosts=_listed(hosts), local=_listed(local))


def controllers(directory: Path, database_url: str) -> str:
    """The settings of a controller that workers and switches reach over TLS, and by nothing else."""
    own = {
        "LARK_POLICY_FILE": directory / "policy.yaml",
        "LARK_TOKENS_FILE": directory / "tokens.yaml",
    }
    lines = [
        "# Settings that `lark setup` has made; yours from now on. docs/reference/settings.md has them all.",
        *(f"{name}={path}" for name, path in own.items() if directory != PLACE),
        *([f"LARK_DATABASE_URL={database_url}"] if database_url else []),
        "",
        "# Workers, people and pages, over TLS.",
        f"LARK_REST_LISTEN={_everywhere(REST_PORT)}",
        f"LARK_REST_TLS_CERT={directory / 'rest.pem'}",
        f"LARK_REST_TLS_KEY={directory / 'rest.key'}",
        "",
        "# Switches, over TLS alone.",
        "LARK_OPENFLOW_LISTEN=",
        f"LARK_OPENFLOW_TLS_LISTEN={_everywhere(OPENFLOW_PORT)}",
        f"LARK_OPENFLOW_TLS_CERT={directory / 'openflow.pem'}",
        f"LARK_OPENFLOW_TLS_KEY={directory / 'openflow.key'}",
        f"LARK_OPENFLOW_TLS_CA={directory / 'ca.pem'}",
        "",
        "# Queues, with the certificate above, when workers' databases listen (docs/how-to/queues.md).",
        "#LARK_OVSDB=ssl:{host}:6640",
    ]
    return "\n".join(lines) + "\n"


def joins(directory: Path, *, signs: bool) -> str:
    """The settings of a controller that workers may join; ``signs`` is true where it signs their certificates."""
    key = f"LARK_JOIN_KEY={directory / 'ca' / 'ca.key'}"
    lines = [
        "",
        "# Workers join by tokens (lark join), get these settings, and certificates of the private authority.",
        f"LARK_JOIN_SETTINGS={directory / JOIN_SETTINGS}",
        *([key] if signs else []),
    ]
    return "\n".join(lines) + "\n"


def workers(
    name: str, port: int, networks: Sequence[Network], gateways: Sequence[Address], nameservers: Sequence[Address]
) -> str:
    """The settings of a worker service, with its files in /etc/lark; without a name those of workers that join, which
    know the rest."""
    made = "Settings of the worker service that `lark setup` has made"
    lines = [
        f"# {made}: /etc/lark/worker.env, mode 0600, owned by root." if name else f"# {made}, for workers that join.",
        "# docs/reference/worker.md has them all.",
    ]
    if name:
        lines += [
            f"LARK_WORKER_URL=https://{name}:{port}",
            f"LARK_WORKER_CA_FILE={PLACE / 'ca.pem'}",
            f"LARK_WORKER_TOKEN_FILE={PLACE / 'worker.token'}",
        ]
    for variable, values in (("NETWORKS", networks), ("GATEWAYS", gateways), ("NAMESERVERS", nameservers)):
        lines.append(f"{'' if values else '#'}LARK_WORKER_{variable}={','.join(map(str, values))}")
    return "\n".join(lines) + "\n"


def loaded(path: Path, text: str) -> Settings:
    """The settings that a controller reads from this text. Raises SettingError with the file's name."""
    try:
        return load(lines_of(text))
    except SettingError as error:
        raise SettingError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def plain(what: str, value: str) -> str:
    """A value that systemd reads from a file of settings as it is. Raises SettingError."""
    if _QUOTED.search(value) or not value.isprintable():
        # The value may hold a password.
        raise SettingError(
            f"{what}: it has a space, a quote or a backslash; in a URL they are written as %20, %22, %5C"
        )
    return value


def reached(listens: Sequence[Listen]) -> int:
    """The port at which other machines reach a server, 0 where they do not."""
    return next((each.port for each in listens if not each.loopback), 0)


def _everywhere(port: int) -> str:
    """All addresses of this machine; IPv6 where its kernel has that."""
    both = f"0.0.0.0:{port},[::]:{port}"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::", 0))
    except OSError:
        return f"0.0.0.0:{port}"
    return both


def _listed(values: Sequence[object]) -> str:
    return ", ".join(f'"{value}"' if ":" in str(value) else str(value) for value in values)
