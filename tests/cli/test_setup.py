"""``lark setup``: what it makes, what it leaves alone, what it makes anew."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from lab.namespaces import temporary_directory
from lark_common.errors import SettingError
from lark_common.settings_table import lines_of
from lark_controller.cli import main as cli
from lark_controller.cli.setup import command, files, plan
from lark_controller.rest import tokens
from lark_controller.rest.joins import certificates
from lark_controller.rest.tokens import Scope
from lark_controller.settings import load
from lark_worker import settings as worker_settings
from tests.fixtures.openflow import openssl
from tests.fixtures.site import HOSTS, NETWORKS, USER, SetUp

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup(tmp_path: Path) -> SetUp:
    return SetUp(tmp_path / "lark")


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def at(moment: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run at another time."""
    monkeypatch.setattr(certificates, "now", lambda: moment)


MADE = {
    ".": "drwxr-xr-x",
    "ca": "drwx------",
    "ca/ca.key": "-rw-------",
    "ca.pem": "-rw-r--r--",
    "lark.env": "-rw-r-----",
    "openflow.key": "-rw-r-----",
    "openflow.pem": "-rw-r-----",
    "operator.token": "-rw-------",
    "policy.yaml": "-rw-r-----",
    "rest.key": "-rw-r-----",
    "rest.pem": "-rw-r-----",
    "tokens.yaml": "-rw-------",
    "workers": "drwx------",
}
OF_A_WORKER = {
    "": "drwx------",
    "/ca.pem": "-rw-r--r--",
    "/switch.key": "-rw-------",
    "/switch.pem": "-rw-------",
    "/worker.env": "-rw-------",
    "/worker.token": "-rw-------",
}


@pytest.fixture(params=[0, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_everything_is_made_with_its_rights_whatever_the_umask(setup: SetUp) -> None:
    assert setup.workers() == cli.OK
    of_workers = {f"workers/{host}{name}": mode for host in HOSTS for name, mode in OF_A_WORKER.items()}
    assert setup.rights() == {name: (mode, USER) for name, mode in (MADE | of_workers).items()}


def test_the_controllers_user_reads_what_it_needs_and_nothing_else() -> None:
    """As root: the authority's key and workers' secrets are closed to the controller itself."""
    with temporary_directory() as directory:
        Path(directory).chmod(0o755)
        setup = SetUp(Path(directory) / "lark")
        setup.user = "nobody"
        assert setup.workers() == cli.OK
        reader = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
        found = subprocess.run([*reader, "find", setup.directory, "-readable", "-type", "f"], capture_output=True)
        readable = {str(Path(os.fsdecode(line)).relative_to(setup.directory)) for line in found.stdout.splitlines()}
        assert readable == {
            "ca.pem", "lark.env", "openflow.key", "openflow.pem", "policy.yaml", "rest.key", "rest.pem", "tokens.yaml",
        }  # fmt: skip
        assert {owner for mode, owner in setup.rights().values() if mode != "-rw-------"} == {"root"}
        assert setup.rights()["tokens.yaml"] == ("-rw-------", "nobody")
        (setup.directory / "rest.key").chmod(0o600)
        assert setup.workers() == cli.USAGE


def test_settings_load_and_the_policy_is_accepted(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup("--gateways", "10.64.0.1,2001:db8:64::1", "--nameservers", "10.64.0.53,192.0.2.53", *worker()) == 0
    settings = load(lines_of((setup.directory / "lark.env").read_text()))
    assert [str(each) for each in settings.openflow_tls_listen] == ["0.0.0.0:6653", "[::]:6653"]
    assert [str(each) for each in settings.rest_listen] == ["0.0.0.0:8443", "[::]:8443"]
    assert settings.openflow_listen == ()
    capsys.readouterr()
    assert cli.main(["check", str(settings.policy_file)]) == cli.OK
    assert capsys.readouterr().out == f"{settings.policy_file}: no mistakes\n"
    policy = settings.policy_file.read_text()
    assert 'jobs: [10.64.0.0/16, "2001:db8:64::/48"]' in policy
    assert 'hosts: [10.64.0.1, "2001:db8:64::1", 10.64.0.53]' in policy
    theirs = worker_settings.load(lines_of(setup.of(HOSTS[0], "worker.env").read_text()))
    assert theirs.url == "https://lark.example:8443"
    assert ",".join(map(str, theirs.networks)) == NETWORKS
    assert list(map(str, theirs.gateways)) == ["10.64.0.1", "2001:db8:64::1"]
    assert list(map(str, theirs.nameservers)) == ["10.64.0.53", "192.0.2.53"]
    assert {theirs.ca_file, theirs.token_file} == {Path("/etc/lark/ca.pem"), Path("/etc/lark/worker.token")}


def worker(*hosts: str) -> list[str]:
    return [word for host in hosts or HOSTS for word in ("--worker", host)]


def test_systemd_reads_a_url_as_it_was_given(setup: SetUp, tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    url = f"sqlite:///{tmp_path}/db/a%20b#c$d.db"
    assert setup("--database-url", url) == cli.OK
    assert load(lines_of((setup.directory / "lark.env").read_text())).database_url == url


def test_certificates_are_good_by_the_letter(setup: SetUp) -> None:
    assert setup.workers() == cli.OK
    assert setup("--name", "lark2.example", "--address", "192.0.2.10", "--renew") == cli.OK
    # A name that is not given again stays.
    assert setup("--address", "2001:db8::10", "--renew") == cli.OK
    authority = setup.directory / "ca.pem"
    chains = [setup.directory / "rest.pem", setup.directory / "openflow.pem", setup.of(HOSTS[0], "switch.pem")]
    for chain in chains:
        for purpose in ("sslserver", "sslclient"):
            openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(authority), str(chain))
    for name in ("-verify_hostname lark.example", "-verify_hostname lark2.example", "-verify_ip 2001:db8::10"):
        openssl("verify", *name.split(), "-CAfile", str(authority), str(setup.directory / "rest.pem"))
    shown = subprocess.run(
        ["openssl", "x509", "-in", chains[2], "-noout", "-text"], capture_output=True, text=True, check=True
    ).stdout
    assert "Subject: CN = worker1.example" in shown
    assert "ASN1 OID: prime256v1" in shown
    assert "DNS:worker1.example" in shown
    ends = certificate(chains[2]).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(1824) < ends <= timedelta(1825)


def test_a_second_run_changes_nothing_and_says_so(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.workers() == cli.OK
    before = setup.identity()
    assert "nothing was changed" not in capsys.readouterr().out
    for more in ((), ("--renew",), ("--json",)):
        assert setup(*worker(), *more) == cli.OK
        out = capsys.readouterr().out
        assert "nothing was changed" in out or json.loads(out)["changed"] is False
        assert setup.identity() == before


def test_a_new_worker_gets_a_directory_and_nothing_else_changes(setup: SetUp) -> None:
    assert setup.workers() == cli.OK
    before = setup.files()
    assert setup.workers(*HOSTS, "worker3.example") == cli.OK
    after = setup.files()
    new = {f"workers/worker3.example/{name}" for name in ("ca.pem", *plan_files())}
    assert after.keys() - before.keys() == new
    assert {name for name in before if before[name] != after[name]} == {"tokens.yaml"}
    assert after["tokens.yaml"].startswith(before["tokens.yaml"])


def plan_files() -> tuple[str, ...]:
    return ("switch.key", "switch.pem", "worker.env", "worker.token")


def test_files_of_the_site_stay(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    setup.directory.mkdir(mode=0o755)
    own = {
        "policy.yaml": "version: 1\nnetworks: {jobs: [10.99.0.0/16], hosts: [10.99.0.1]}\n",
        "tokens.yaml": f"alice: {{sha256: {'a' * 64}, scopes: [operate]}}\n",
        "lark.env": "# mine\n#LARK_LOG_LEVEL=debug",
    }
    for name, text in own.items():
        (setup.directory / name).write_text(text)
    (setup.directory / "tokens.yaml").chmod(0o600)
    setup.options = ("--name", "lark.example", "--gateways", "10.99.0.1")
    assert setup.workers() == cli.OK
    found = setup.files()
    assert found["policy.yaml"].decode() == own["policy.yaml"]
    assert found["tokens.yaml"].decode().startswith(own["tokens.yaml"])
    assert found["lark.env"].decode().startswith(own["lark.env"] + "\n\n# Settings that `lark setup`")
    assert b"LARK_WORKER_NETWORKS=10.99.0.0/16\n" in found[f"workers/{HOSTS[0]}/worker.env"]
    # What a run has made is the site's from then on.
    with (setup.directory / "lark.env").open("a") as env:
        env.write("LARK_LOG_LEVEL=debug\n")
    setup.of(HOSTS[0], "worker.env").write_text("LARK_WORKER_URL=https://lark.example:8443\n")
    before = setup.identity()
    capsys.readouterr()
    assert setup.workers() == cli.OK
    assert setup.identity() == before
    assert f"worker.env is another than would be made now, and stays: {HOSTS[0]}" in capsys.readouterr().out


def test_the_packages_examples_are_not_the_sites(setup: SetUp) -> None:
    setup.directory.mkdir(mode=0o755)
    for name in ("lark.env", "policy.yaml"):
        (setup.directory / name).write_bytes((ROOT / "etc" / name).read_bytes())
    (setup.directory / "tokens.yaml").touch(mode=0o600)
    setup.options = ("--name", "lark.example", "--networks", "10.99.0.0/16")
    assert setup() == cli.OK
    assert "jobs: [10.99.0.0/16]" in (setup.directory / "policy.yaml").read_text()
    assert (setup.directory / "lark.env").read_text().startswith((ROOT / "etc" / "lark.env").read_text())


def test_renewal_is_for_what_ends_soon_and_keeps_keys(
    setup: SetUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup("--days", "400", *worker(HOSTS[0])) == cli.OK
    assert setup("--days", "800", *worker()) == cli.OK
    before = setup.files()
    later = datetime.now(UTC) + timedelta(days=380)
    at(later, monkeypatch)
    capsys.readouterr()
    assert setup.workers() == cli.OK
    assert setup.files() == before
    assert f"warning: {setup.directory}/rest.pem ends on " in capsys.readouterr().out
    assert setup("--renew", *worker()) == cli.OK
    renewed = {"rest.pem", "openflow.pem", f"workers/{HOSTS[0]}/switch.pem"}
    after = setup.files()
    assert {name for name in after if after[name] != before.get(name)} == renewed
    out = capsys.readouterr().out
    assert "systemctl restart lark-controller.service" in out
    # The worker whose certificate stays is not copied to again.
    assert f"for host in {HOSTS[0]};" in out
    for name in renewed:
        path = setup.directory / name
        key = certificates.read_key(path.with_suffix(".key"))
        assert key is not None
        assert certificates.belong(certificate(path), key)
        assert certificate(path).not_valid_after_utc > later + timedelta(days=1800)


def test_an_authority_that_ends_is_renewed_with_its_key_and_what_it_signed_stays_good(
    setup: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.workers() == cli.OK
    now = datetime.now(UTC)
    # Nothing is signed for longer than its authority is good.
    at(now + timedelta(days=7200), monkeypatch)
    assert setup("--renew", *worker()) == cli.OK
    switch = setup.of(HOSTS[0], "switch.pem")
    old = certificate(setup.directory / "ca.pem")
    assert certificate(switch).not_valid_after_utc == old.not_valid_after_utc
    held = switch.read_bytes()
    at(now + timedelta(days=7290), monkeypatch)
    assert setup("--renew") == cli.OK
    new = certificate(setup.directory / "ca.pem")
    assert new.not_valid_after_utc > old.not_valid_after_utc
    assert certificates.is_signed_by(x509.load_pem_x509_certificate(held), new)
    assert setup("--renew", *worker()) == cli.OK
    assert setup.of(HOSTS[0], "ca.pem").read_bytes() == (setup.directory / "ca.pem").read_bytes()
    assert certificate(switch).not_valid_after_utc > new.not_valid_before_utc + timedelta(days=1800)


def site_authority(directory: Path) -> tuple[Path, Path]:
    """An authority of the site's below another one: the file with both, and its key (RSA)."""
    top, key, request, below = (directory / name for name in ("top.pem", "site.key", "site.csr", "site.pem"))
    extensions = directory / "extensions"
    extensions.write_text("basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "900", "-subj", "/CN=top",
            "-addext", "keyUsage=critical,keyCertSign", "-keyout", str(directory / "top.key"),
            "-out", str(top))  # fmt: skip
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=site", "-keyout", str(key), "-out", str(request))
    openssl("x509", "-req", "-days", "900", "-in", str(request), "-CA", str(top), "-CAkey", str(directory / "top.key"),
            "-CAcreateserial", "-extfile", str(extensions), "-out", str(below))  # fmt: skip
    below.write_bytes(below.read_bytes() + top.read_bytes())
    return below, key


def test_the_sites_own_authority_signs_and_its_key_stays_where_it_is(setup: SetUp, tmp_path: Path) -> None:
    cert, key = site_authority(tmp_path)
    assert setup("--ca-cert", str(cert), "--ca-key", str(key), *worker()) == cli.OK
    authority = setup.directory / "ca.pem"
    openssl("verify", "-CAfile", str(authority), str(setup.of(HOSTS[0], "switch.pem")))
    assert not (setup.directory / "ca").exists()
    assert all(key.read_bytes() != content for content in setup.files().values())
    before = setup.identity()
    assert setup.workers() == cli.OK
    assert setup.identity() == before
    # Without the key nothing more is signed.
    assert setup.workers("worker3.example") == cli.USAGE
    assert setup.identity() == before
    assert setup("--ca-cert", str(cert), "--ca-key", str(key), *worker("worker3.example")) == cli.OK


def test_each_token_is_good_for_its_own_and_the_files_hold_them(setup: SetUp) -> None:
    assert setup.workers() == cli.OK
    held = {token.name: token for token in tokens.read(setup.directory / "tokens.yaml")}
    expected: dict[str, tuple[frozenset[Scope], tuple[str, ...] | None]] = {
        "operator": (frozenset({Scope.OPERATE}), None),
        **{host: (frozenset({Scope.HOOK}), (host,)) for host in HOSTS},
    }
    assert {name: (token.scopes, token.hosts) for name, token in held.items()} == expected
    secrets = {
        "operator": setup.directory / "operator.token",
        **{host: setup.of(host, "worker.token") for host in HOSTS},
    }
    for name, file in secrets.items():
        assert hashlib.sha256(file.read_bytes().strip()).hexdigest() == held[name].sha256


def test_a_token_that_was_taken_away_is_not_put_in_force_again(setup: SetUp) -> None:
    assert setup.workers() == cli.OK
    path, file = setup.directory / "tokens.yaml", setup.of(HOSTS[0], "worker.token")
    gone = file.read_text().strip()
    path.write_text("".join(line for line in path.read_text().splitlines(True) if HOSTS[0] not in line))
    assert setup.workers() == cli.OK
    known = tokens.Tokens(path)
    assert known.find(gone) is None
    assert known.find(file.read_text().strip()) is not None


@pytest.mark.parametrize("name", ["File.write", "add_all"])
def test_a_run_that_was_cut_short_is_completed_by_the_next(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at every file in turn, and each file is whole or not there."""
    whole = SetUp(tmp_path / "whole")
    assert whole.workers() == cli.OK
    where, call = (files.File, "write") if name == "File.write" else (command, "add_all")
    real = getattr(where, call)
    for last in range(100):
        setup, left = SetUp(tmp_path / f"{name}{last}"), iter(range(last))

        def cut(*args: object, left: Iterator[int] = left, **more: object) -> object:
            if next(left, None) is None:
                raise SettingError("no room")
            return real(*args, **more)

        monkeypatch.setattr(where, call, cut)
        status = setup.workers()
        monkeypatch.setattr(where, call, real)
        assert not list(setup.directory.rglob(".*"))
        if status == cli.OK:
            assert last > 1
            return
        assert setup.workers() == cli.OK
        assert setup.rights() == whole.rights()
        before = setup.identity()
        assert setup.workers() == cli.OK
        assert setup.identity() == before
    pytest.fail("it never came to an end")


def test_a_thousand_workers_are_as_much_work_each_as_ten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: dict[str, int] = {}

    def counted(where: object, name: str) -> None:
        real = getattr(where, name)

        def count(*args: object, **more: object) -> object:
            done[name] = done.get(name, 0) + 1
            return real(*args, **more)

        monkeypatch.setattr(where, name, count)

    counted(files.File, "write")
    counted(certificates, "sign")
    counted(certificates, "new_key")
    counted(tokens, "replace")
    counted(tokens, "read")
    counted(plan, "read_tokens")
    counted(os, "sync")

    def work(count: int, name: str) -> dict[str, int]:
        listed = tmp_path / f"{name}{count}.txt"
        listed.write_text("".join(f"worker{number}.example\n" for number in range(count)))
        done.clear()
        assert SetUp(tmp_path / name)("--workers", str(listed)) == cli.OK
        return dict(done)

    ten, thousand = work(10, "few"), work(1000, "many")
    grown = {"write": 5, "sign": 1, "new_key": 1}
    assert {name: thousand[name] - ten[name] for name in ten} == {name: 990 * grown.get(name, 0) for name in ten}
    assert ten["replace"] == 2
    # A second run reads, and writes nothing.
    assert work(1000, "many").keys() == {"read_tokens"}
    assert len(list((tmp_path / "many" / "workers").iterdir())) == 1000


def test_the_copy_arrives_with_its_modes_and_leaves_the_directorys_own(
    setup: SetUp, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command, with another directory for /etc/lark and a shell in ssh's place."""
    assert setup.workers() == cli.OK
    assert setup("--json", *worker()) == cli.OK
    document = json.loads(capsys.readouterr().out.rpartition("What to do next:")[2].partition("{")[2].join(["{", ""]))
    (copy,) = [step["commands"] for step in document["next"] if "copy" in step["what"]]
    there = tmp_path / "hosts"
    programs = tmp_path / "bin"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nhost=${{1#root@}}\nmkdir -p "{there}/$host"\ncd "{there}/$host" && exec sh -c "$2"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "C")
    subprocess.run(["sh", "-c", copy[0].replace("/etc/lark", "etc/lark")], check=True)
    for host in HOSTS:
        arrived = SetUp(there / host / "etc" / "lark")
        assert {name: mode for name, (mode, _) in arrived.rights().items()} == {
            **{name.removeprefix("/"): mode for name, mode in OF_A_WORKER.items() if name},
            ".": "drwxr-xr-x",
        }
        assert arrived.files() == {name: setup.of(host, name).read_bytes() for name in arrived.files()}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), ["lark setup --name lark.example --workers FILE", "systemctl restart lark-controller.service"]),
        (("--worker", "w", "--address", "2001:db8::10"), ["set-controller br0 ssl:[2001:db8::10]:6653 ", "host in w;"]),
        (("--worker", "w"), ["set-controller br0 ssl:lark.example:6653 ", "no --gateways: "]),
        (worker("a", "b", "c", "d"), ["for host in $(ls ", "lark-worker check", "lark-access-point"]),
    ],
)
def test_it_says_what_to_do_next(
    more: tuple[str, ...], words: list[str], setup: SetUp, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup(*more) == cli.OK
    out = capsys.readouterr().out
    for word in words:
        assert word in out
    secrets = [setup.directory / "operator.token", *setup.directory.glob("workers/*/worker.token")]
    assert all(secret.read_text().strip() not in out for secret in secrets)


def test_a_controller_that_runs_already_gets_the_settings(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    """It has started before with the package's examples, and listens on loopback alone."""
    assert setup() == cli.OK
    assert "systemctl restart lark-controller.service" in capsys.readouterr().out
    assert setup() == cli.OK
    out = capsys.readouterr().out
    assert "systemctl enable --now lark-controller.service" in out
    assert "systemctl restart" not in out


def test_where_workers_join_by_tokens_later_runs_say_so_too(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup("--joins") == cli.OK
    capsys.readouterr()
    assert setup() == cli.OK
    out = capsys.readouterr().out
    assert "lark join add --hosts hosts.txt" in out
    assert "--workers" not in out
