"""A zone for names of external addresses in BIND, made by the commands of the how-to page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from lab.run import free_port
from lark_controller.services.dns_updates import DnsUpdates
from lark_controller.services.external_names import ExternalNames
from lark_controller.settings import Listen
from lark_controller.store import Store
from tests.fixtures.bind import ADDRESS, ZONE, addresses_at
from tests.fixtures.service import wait
from tests.install.pages import Page
from tests.services.test_external_names import Closing, give, store

__all__ = ["store"]

# In place of Debian's, which the page does not change but for named.conf.local.
_NAMED = """options {{
  directory "/var/cache/bind"; pid-file "{directory}/pid"; session-keyfile "{directory}/session";
  listen-on port {port} {{ {address}; }}; listen-on-v6 {{ none; }}; recursion no; dnssec-validation no;
}};
controls {{ }};
include "/etc/bind/named.conf.local";
"""
# The machine's own files stay as they are.
_ELSEWHERE = """set -e
mount --bind "$1/etc" /etc/bind
mount --bind "$1/lib" /var/lib/bind
chgrp bind "$1/etc" "$1/lib"
chmod 2755 "$1/etc"
chmod 775 "$1/lib"
eval "$2"
[ "$(stat -c %U:%G:%a /etc/bind/lark.key)" = root:bind:640 ]
exec /usr/sbin/named -f -u bind -4 -n1 -c /etc/bind/named.conf
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory into which the server's own user has a way."""
    with temporary_directory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_commands_of_the_page_make_a_zone_that_takes_names(store: Store, place: Path) -> None:
    block = Page("external-addresses.md", {"systemctl reload named\n": ""}).block("(umask 027; tsig-keygen")
    for folder in ("etc", "lib", "run"):
        (place / folder).mkdir(mode=0o755)
    (place / "run").chmod(0o777)
    port = free_port(ADDRESS)
    (place / "etc/named.conf").write_text(_NAMED.format(directory=place / "run", port=port, address=ADDRESS))
    (place / "etc/named.conf.local").write_text("")
    log = place / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _ELSEWHERE, "zone", place, block], stdout=output, stderr=output
        )
    try:
        names = ExternalNames(store, DnsUpdates(Listen(ADDRESS, port), place / "etc/lark.key"), None, Closing())
        given = give(store, 1, "web")

        def is_added() -> bool:
            assert server.poll() is None, log.read_text()
            names.turn()
            return addresses_at(f"web.{ZONE}", port=port) == [str(given.address)]

        wait(is_added)
    finally:
        server.terminate()
        server.wait()
