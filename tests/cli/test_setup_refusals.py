"""``lark setup`` refuses before it writes anything, and says what is wrong, where, and what is accepted."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from lab.namespaces import temporary_directory
from lab.postgres import PostgresServer
from lark_common.errors import StoreError
from lark_controller.cli import main as cli
from lark_controller.store import Store, trial
from tests.fixtures.openflow import make_authority, make_certificate, openssl
from tests.fixtures.site import HOSTS, NETWORKS, SetUp

WORKERS = ("--worker", HOSTS[0], "--worker", HOSTS[1])


@pytest.fixture
def setup(tmp_path: Path) -> SetUp:
    return SetUp(tmp_path / "lark")


def refused(setup: SetUp, *more: str, code: int = cli.USAGE) -> None:
    """It ends with that code, and nothing was written."""
    before = setup.identity() if setup.directory.is_dir() else None
    assert setup(*more) == code
    assert (setup.identity() if setup.directory.is_dir() else None) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "lark example"], "'lark example' is no host's name. Accepted: such as lark.example"),
        (["--name", "a" * 65], "at most 64 characters"),
        (["--name", "192.0.2.1"], "is no host's name"),
        (["--name", "l", "--address", "lark.example"], "argument --address: "),
        (["--name", "l", "--networks", "10.64.0.1/16"], "10.64.0.1/16 has host bits set. Accepted: networks such as"),
        (["--name", "l", "--gateways", "10.64.0.0/16"], "Accepted: addresses such as"),
        (["--name", "l", "--days", "0"], "Accepted: a whole number from 1 to 7300"),
        ([], "the following arguments are required: --name"),
    ],
)
def test_options_that_cannot_be_read(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["setup", *options])
    assert caught.value.code == cli.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--user", "nobody-of-this-name"), "there is no user nobody-of-this-name on this machine"),
        (("--ca-cert", "site.pem"), "--ca-cert and --ca-key: accepted only together"),
        (("--ca-cert", "/none.pem", "--ca-key", "/none.key"), "/none.pem: there is no such file"),
        (("--worker", "../etc"), "'../etc' is no host's name"),
        (("--worker", "w" * 65), "a certificate's name has at most 64 characters"),
        (("--worker", "operator"), "operator: it is the name of the operator's token; accepted: "),
        (("--worker", "w1", "--worker", "W1"), "w1 and W1 are the same host"),
        (("--workers", "/none"), "/none: cannot be read"),
        (("--directory", "/none/lark"), "/none/lark: there is no directory /none to make it in"),
        (("--directory", "/dev/null"), "/dev/null: it is no directory"),
        (("--gateways", "10.64.0.1,10.64.0.2"), "--gateways: accepted: at most one for IPv4 and one for IPv6"),
        (("--gateways", "192.0.2.1"), "--gateways: 192.0.2.1 is in no job network"),
        (("--networks", "10.64.0.0/16,10.64.0.0/24"), "--networks: "),
        (("--database-url", "sqlite:////tmp/a b.db"), "--database-url: it has a space"),
    ],
)
def test_what_cannot_be_done(
    more: tuple[str, ...], words: str, setup: SetUp, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(setup, *more)
    err = capsys.readouterr().err
    assert err.startswith("lark: ")
    assert words in err


def test_a_first_policy_needs_networks(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    setup.options = ("--name", "lark.example")
    refused(setup)
    assert "--networks is needed for the first policy" in capsys.readouterr().err


def test_no_unprivileged_caller_makes_files_for_another_user(tmp_path: Path) -> None:
    """As another user than root: no traceback, and the reason."""
    command = [str(Path(cli.__file__).parents[2] / ".venv/bin/lark"), "setup", "--name", "l", "--user", "root"]
    done = subprocess.run(
        ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", *command],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == cli.USAGE
    assert done.stderr == "lark: the files are to be read by the user root alone: run this command as root\n"


def write(name: str, text: str) -> Callable[[SetUp], None]:
    return lambda setup: void((setup.directory / name).write_text(text))


def remove(name: str) -> Callable[[SetUp], None]:
    return lambda setup: (setup.directory / name).unlink()


def copy(name: str, other: str) -> Callable[[SetUp], None]:
    return lambda setup: void((setup.directory / name).write_bytes((setup.directory / other).read_bytes()))


def void(_: object) -> None:
    return None


def strange(setup: SetUp) -> None:
    make_authority(setup.directory.parent, "other")
    cert, key = make_certificate(setup.directory.parent, "other", "rest")
    (setup.directory / "rest.pem").write_bytes(cert.read_bytes())
    (setup.directory / "rest.key").write_bytes(key.read_bytes())


def locked(setup: SetUp) -> None:
    key = str(setup.directory / "rest.key")
    openssl("pkcs8", "-topk8", "-in", key, "-out", f"{key}.new", "-passout", "pass:secret")
    Path(f"{key}.new").replace(key)


SWITCH = f"workers/{HOSTS[0]}/switch"
TOKEN = f"workers/{HOSTS[0]}/worker.token"


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (remove("rest.key"), (), "rest.key: the key of "),
        (copy("rest.key", "openflow.key"), (), "rest.pem: it is for another key than "),
        (strange, (), "ca.pem has not signed it; remove "),
        (locked, (), "rest.key: it has a passphrase; accepted: an EC or RSA key in PEM without a passphrase"),
        (write("rest.pem", "-----BEGIN CERTIFICATE-----\n"), (), "rest.pem: it is no certificate; accepted: PEM"),
        (write("rest.key", "key"), (), "rest.key: it is no private key; accepted: "),
        (write("ca.pem", ""), (), "ca.pem: it is no certificate"),
        (copy("ca.pem", "rest.pem"), (), "ca.pem: its first certificate is no authority's"),
        (copy("ca/ca.key", "rest.key"), (), "ca.pem: its first certificate is for another key than the authority's"),
        (remove("ca/ca.key"), ("--worker", "new"), "switch.pem: the authority's key is needed to sign it; accepted: "),
        (void, ("--name", "lark2.example"), "rest.pem: it is not for lark2.example; --renew makes it anew"),
        (void, ("--address", "192.0.2.9"), "openflow.pem: it is not for 192.0.2.9; --renew makes it anew"),
        (copy(f"{SWITCH}.key", "rest.key"), (), f"{SWITCH}.pem: it is for another key than "),
        (remove(TOKEN), (), f"{TOKEN}: {HOSTS[0]} has a token, but its file is not there; put it back, or remove the"),
        (write(TOKEN, "lark_another"), (), f"{TOKEN}: it is not the token of {HOSTS[0]}; put that one there, or"),
        (lambda setup: (setup.directory / "tokens.yaml").chmod(0o644), (), "group or others may read or write it"),
        (lambda setup: setup.directory.chmod(0o777), (), "others may write there; accepted: a directory of root's"),
        (lambda setup: (setup.directory / "workers").chmod(0o777), (), "workers: it is no directory, or others may"),
        (write("policy.yaml", "version: 2\n"), (), "policy.yaml: line 1, version: "),
        (void, ("--networks", "10.99.0.0/16"), "policy.yaml: its job networks are "),
        (void, ("--gateways", "10.64.0.9"), "policy.yaml: 10.64.0.9 is not among networks.hosts"),
        (write("lark.env", "LARK_LEASE_SECONDS=soon\n"), (), "lark.env: LARK_LEASE_SECONDS=soon: accepted: "),
        (write("lark.env", "LARK_LOG_LEVEL=info\n"), (), "LARK_REST_LISTEN=127.0.0.1:8080; accepted: an address that"),
        (write("lark.env", "LARK_LOG_LEVEL=info\n"), (), "lark.env is yours and is not changed: write these settings"),
        (void, ("--database-url", "sqlite:////tmp/x.db"), "it has another LARK_DATABASE_URL than --database-url"),
    ],
)
def test_what_is_there_and_does_not_fit(
    change: Callable[[SetUp], None],
    more: tuple[str, ...],
    words: str,
    setup: SetUp,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert setup(*WORKERS) == cli.OK
    change(setup)
    capsys.readouterr()
    if "--networks" in more:
        setup.options = ("--name", "lark.example")
    refused(setup, *WORKERS, *more, code=cli.NO if "version" in words else cli.USAGE)
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_of_a_thousand_mistakes_few_are_printed(setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [f"w{number}" for number in range(30)]
    assert setup.workers(*hosts) == cli.OK
    for host in hosts:
        setup.of(host, "worker.token").unlink()
    capsys.readouterr()
    assert setup.workers(*hosts) == cli.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "and 20 more"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "cannot be read as a database URL; accepted: sqlite:"),
        ("mysql://lark@db/lark", "names the database 'mysql'; accepted: sqlite:"),
        ("sqlite:////none/lark.db", "there is no directory /none; make it, or name another file"),
        ("postgresql://lark:secret@127.0.0.1:1/lark", "Start the server, or correct host and port"),
        ("postgresql://lark:secret@none.invalid/lark", "Correct the host in LARK_DATABASE_URL"),
    ],
)
def test_a_database_that_is_not_there(url: str, words: str, setup: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    refused(setup, "--database-url", url, code=cli.NO)
    err = capsys.readouterr().err
    assert words in err
    assert "secret" not in err
    assert len(err.splitlines()) == 1


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a database without tables, which goes with its roles."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")


def execute(url: str, *commands: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for each in commands:
            connection.execute(each)


def tables(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 2200")]


@pytest.mark.postgres
def test_a_fit_database_is_taken_and_has_no_tables_afterwards(
    setup: SetUp, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables(database)
    assert setup("--database-url", database) == cli.OK
    assert ": fit for Lark" in capsys.readouterr().out
    assert tables(database) == before
    assert f"LARK_DATABASE_URL={database}\n" in (setup.directory / "lark.env").read_text()
    store = Store.open(database)
    store.migrate()
    store.close()
    held = setup.identity()
    assert setup() == cli.OK
    assert setup.identity() == held


@pytest.fixture
def open_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This Python with these packages where every user may run it; that of a home directory is closed to others."""
    with temporary_directory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "base").mkdir()
        # In the mount namespace that the tests have for themselves.
        subprocess.run(["mount", "--bind", sys.base_prefix, place / "base"], check=True)
        own = place / "own"
        packages = own / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        packages.parent.mkdir(parents=True)
        packages.symlink_to(sysconfig.get_path("purelib"))
        (own / "bin").mkdir()
        binary = Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
        (own / "bin" / "python3").symlink_to(place / "base" / binary)
        script = own / "bin" / "python"
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={place}/base/lib exec {own}/bin/python3 "$@"\n')
        script.chmod(0o755)
        (own / "pyvenv.cfg").write_text(f"home = {place / 'base' / binary.parent}\n")
        monkeypatch.setattr(sys, "executable", str(script))
        yield
        subprocess.run(["umount", place / "base"], check=True)


@pytest.mark.postgres
@pytest.mark.usefixtures("open_python")
def test_the_controllers_own_user_is_who_asks(postgres_server: PostgresServer) -> None:
    """A server that admits that system user alone (``peer``) admits the trial, too."""
    name = postgres_server.new_database().split("?")[0].rsplit("/", 1)[1]
    url = postgres_server.url(name).replace("lark@", "nobody@")
    hba = postgres_server.directory / "data" / "pg_hba.conf"
    before = hba.read_text()
    admin = postgres_server.url("postgres")
    execute(admin, "CREATE ROLE nobody LOGIN", f"ALTER DATABASE {name} OWNER TO nobody")
    # Its socket is in a directory of its user's own.
    postgres_server.directory.chmod(0o711)
    try:
        hba.write_text("local all nobody peer\n" + before)
        execute(admin, "SELECT pg_reload_conf()")
        with temporary_directory() as directory:
            Path(directory).chmod(0o755)
            setup = SetUp(Path(directory) / "lark")
            setup.user = "nobody"
            deadline = time.monotonic() + 20
            while is_admitted(url):
                assert time.monotonic() < deadline, "the server has not read pg_hba.conf"
            assert setup("--database-url", url) == cli.OK
    finally:
        postgres_server.directory.chmod(0o700)
        hba.write_text(before)
        execute(admin, "SELECT pg_reload_conf()")
        postgres_server.drop_database(url)
        execute(admin, "DROP ROLE nobody")


def is_admitted(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def newer(url: str) -> None:
    store = Store.open(url)
    store.migrate()
    store.close()
    execute(url, "UPDATE alembic_version SET version_num = '9999'")


def with_tables_of_another(url: str) -> None:
    store = Store.open(url)
    store.migrate()
    store.close()
    execute(url, "CREATE ROLE reader LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("change", "role", "words"),
    [
        (
            lambda url: execute(url, "CREATE ROLE reader LOGIN", "REVOKE CREATE ON SCHEMA public FROM public"),
            "reader",
            ["permission denied for schema public", "`ALTER DATABASE NAME OWNER TO reader`"],
        ),
        (with_tables_of_another, "reader", ["permission denied for table runs", "Accepted: a role that owns"]),
        (
            lambda url: execute(
                url,
                "CREATE ROLE reader LOGIN",
                "ALTER ROLE reader SET default_transaction_read_only = on",
                "GRANT ALL ON SCHEMA public TO reader",
            ),
            "reader",
            ["it takes no writes; accepted: the primary server"],
        ),
        (newer, "lark", ["The database has schema 9999, made by a newer Lark"]),
        (void, "stranger", ['role "stranger" does not exist', "Create the role"]),
    ],
)
def test_a_database_whose_rights_or_tables_do_not_fit(
    change: Callable[[str], None],
    role: str,
    words: list[str],
    setup: SetUp,
    database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(database)
    refused(setup, "--database-url", database.replace("lark@", f"{role}@"), code=cli.NO)
    err = capsys.readouterr().err
    for word in words:
        assert word in err
    execute(database, "DROP OWNED BY reader") if role == "reader" else None


@pytest.mark.postgres
def test_another_encoding_is_refused(
    postgres_server: PostgresServer, setup: SetUp, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(
        postgres_server.url("postgres"),
        "CREATE DATABASE other ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    url = postgres_server.url("other")
    try:
        refused(setup, "--database-url", url, code=cli.NO)
    finally:
        postgres_server.drop_database(url)
    assert "its encoding is SQL_ASCII; accepted: UTF8. Make it anew by `createdb " in capsys.readouterr().err


@pytest.mark.postgres
def test_a_server_of_an_older_version_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "OLDEST", 99)
    with pytest.raises(StoreError, match="accepted: 99 or newer"):
        trial.try_out(database)


def test_networks_of_the_first_run_need_not_be_given_again(setup: SetUp) -> None:
    assert setup() == cli.OK
    setup.options = ("--name", "lark.example")
    assert setup(*WORKERS) == cli.OK
    assert f"LARK_WORKER_NETWORKS={NETWORKS}\n" in setup.of(HOSTS[0], "worker.env").read_text()
