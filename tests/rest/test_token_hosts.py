"""Tokens and certificates of workers are good for their hosts' jobs alone, in every operation of a hook."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lark_common import log
from lark_common.client import Client, ProblemError
from lark_common.errors import SettingError
from lark_controller.cli import main as cli
from lark_controller.rest.token_files import add_workers, write_secret
from lark_controller.rest.tokens import Scope, Token, Tokens, add, add_all, is_among, read
from tests.fixtures.fake_controls import TOKENS, bearer, post_body
from tests.fixtures.rest_app import Api, make_api
from tests.rest.test_routes import assert_problem
from tests.rest.test_server import Running, certificate

# What a hook's token may do that concerns no host's jobs.
OF_THE_POOL = {
    ("get", "/v1/external-pools"),
    ("get", "/v1/groups"),
    ("get", "/v1/links"),
    ("get", "/v1/token"),
}


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def made_for(api: Api, *hosts: str) -> dict[str, str]:
    """The header of a new hook's token that is good for these hosts."""
    secret = add(api.tokens, f"token{len(read(api.tokens))}", {Scope.HOOK}, hosts=hosts)
    return {"Authorization": f"Bearer {secret}"}


def reserved(api: Api, job: str) -> Any:
    wish = {"source": job, "destination": "192.0.2.1", "rate": 10, "duration": 60}
    answer = api.client.post("/v1/reservations", json=wish, headers=bearer("operate"))
    assert answer.status_code == 201, answer.text
    return answer.json


def associated(api: Api, job: str) -> Any:
    answer = api.client.post("/v1/external-addresses", json={"job": job}, headers=bearer("operate"))
    assert answer.status_code == 201, answer.text
    return answer.json


COUNTERS = {"bytes_in": 1, "bytes_out": 1, "packets_in": 1, "packets_out": 1, "final": False}
# A request of each operation of a hook, and what becomes of it with a token for the job's own host.
ASKED: dict[tuple[str, str], tuple[dict[str, Any], int]] = {
    ("post", "/v1/jobs"): ({"data": post_body(2), "content_type": "text/plain"}, 201),
    ("get", "/v1/jobs/{job_id}"): ({}, 200),
    ("get", "/v1/jobs/{job_id}/advice"): ({}, 200),
    ("get", "/v1/jobs/{job_id}/delivered"): ({}, 200),
    ("post", "/v1/jobs/{job_id}/renew"): ({}, 200),
    ("post", "/v1/jobs/{job_id}/forgery"): ({"data": "Owner", "content_type": "text/plain"}, 200),
    ("post", "/v1/jobs/{job_id}/limited"): ({"data": "connections", "content_type": "text/plain"}, 200),
    ("post", "/v1/jobs/{job_id}/counters"): ({"json": COUNTERS}, 200),
    ("delete", "/v1/jobs/{job_id}"): ({}, 200),
    ("get", "/v1/hosts/{host}/rules"): ({}, 200),
    ("get", "/v1/hosts/{host}/paths"): ({}, 200),
    ("put", "/v1/hosts/{host}/rules"): ({"json": {"revision": "5f0e12ab.17"}}, 200),
    ("post", "/v1/hosts/{host}/leases"): ({"json": {"jobs": []}}, 200),
    ("post", "/v1/hosts/{host}/use"): ({"json": {"jobs": []}}, 200),
    ("post", "/v1/hosts/{host}/delivered"): ({"json": {"at": 1000, "queues": []}}, 200),
    ("post", "/v1/hosts/{host}/transfers"): ({"json": {"jobs": []}}, 200),
    ("post", "/v1/hosts/{host}/scitags"): ({"json": {"jobs": []}}, 200),
    ("post", "/v1/reservations"): (
        {"json": {"source": "JOB", "destination": "198.51.100.1", "rate": 1, "duration": 60}},
        201,
    ),
    ("get", "/v1/reservations/{reservation_id}"): ({}, 200),
    ("get", "/v1/reservations/{reservation_id}/delivered"): ({}, 200),
    ("patch", "/v1/reservations/{reservation_id}"): ({"json": {"rate": 5}}, 200),
    ("delete", "/v1/reservations/{reservation_id}"): ({}, 200),
    # The job has one already.
    ("post", "/v1/external-addresses"): ({"json": {"job": "JOB", "open": []}}, 200),
    ("get", "/v1/external-addresses/{association_id}"): ({}, 200),
    ("delete", "/v1/external-addresses/{association_id}"): ({}, 200),
}


def test_every_operation_of_a_hook_is_among_those_that_are_tried(api: Api) -> None:
    document: Any = api.client.get("/openapi.json").json
    found = {
        (method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method != "parameters" and "hook" in operation.get("x-lark-scopes", ())
    }
    assert found == set(ASKED) | OF_THE_POOL


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_a_token_is_good_for_its_hosts_alone(api: Api, method: str, path: str) -> None:
    job = api.register(address="10.64.0.9")["id"]
    ids = {"reservation_id": reserved(api, job)["id"], "association_id": associated(api, job)["id"]}
    where = path.format(job_id=job, host="worker1.example", **ids)
    given, status = ASKED[(method, path)]
    text = json.dumps(given["json"]).replace("JOB", job) if "json" in given else ""
    request = {"data": text, "content_type": "application/json"} if text else given
    elsewhere = api.client.open(where, method=method, headers=made_for(api, "worker2.example"), **request)
    problem = assert_problem(elsewhere, 403, "host")
    assert "is good for worker2.example, not for worker1.example" in problem["detail"]
    own = api.client.open(where, method=method, headers=made_for(api, "WORKER1.example"), **request)
    assert own.status_code == status, own.text


def test_a_reservation_by_address_is_its_jobs(api: Api) -> None:
    api.register(address="10.64.0.9")
    wish = {"source": "10.64.0.9", "destination": "192.0.2.1", "rate": 1, "duration": 60}
    elsewhere = api.client.post("/v1/reservations", json=wish, headers=made_for(api, "worker2.example"))
    assert_problem(elsewhere, 403, "host")
    assert api.client.post("/v1/reservations", json=wish, headers=made_for(api, "worker1.*")).status_code == 201


def test_a_run_of_another_host_cannot_be_taken_over_by_its_name(api: Api) -> None:
    api.register()
    # The id of a run is made of GlobalJobId, start and slot, and the slot's name is only a name.
    stolen = post_body().replace('Machine = "worker1.example"', 'Machine = "worker2.example"')
    answer = api.client.post(
        "/v1/jobs", data=stolen, content_type="text/plain", headers=made_for(api, "worker2.example")
    )
    assert "not for worker1.example" in assert_problem(answer, 403, "host")["detail"]
    assert [job.host for job in api.controls.jobs.known.values()] == ["worker1.example"]


def test_a_token_of_the_old_kind_is_good_for_every_host_and_called_so(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.register()
    assert api.get("/v1/token", scope="hook").json["hosts"] is None
    log.configure("info", "text")
    made = f"token{len(TOKENS)}"
    made_for(api, "w1", "*.example")
    Tokens(api.tokens)
    said = [line for line in capsys.readouterr().err.splitlines() if "good for every host" in line]
    assert len(said) == 1
    assert "expired,hook" in said[0] or "hook" in said[0]
    assert cli.main(["token", "--list", "--file", str(api.tokens)]) == cli.OK
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "every host" in lines["hook"]
    assert "every host" not in lines["read"]
    assert "w1, *.example" in lines[made]
    assert "has expired" in lines["expired"]
    assert cli.main(["token", "--list", "--json", "--file", str(api.tokens)]) == cli.OK
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert (listed["hook"]["every_host"], listed[made]["every_host"]) == (True, False)
    assert not any(secret in json.dumps(listed) for secret in TOKENS.values())


@pytest.mark.parametrize(
    ("host", "accepted", "is_one"),
    [
        ("worker1.example", ["worker1.example"], True),
        ("Worker1.Example.", ["worker1.example"], True),
        ("worker11.example", ["worker1.example"], False),
        ("worker1.example", ["*.example"], True),
        ("worker1.example.net", ["*.example"], False),
        ("worker1.example", ["worker*.example"], True),
        (".example", ["*.example"], True),
        ("aba", ["ab*ba"], False),
        ("w1", ["w2", "w1"], True),
        ("", ["w1"], False),
    ],
)
def test_names_and_patterns(host: str, accepted: list[str], is_one: bool) -> None:
    assert is_among(host, accepted) is is_one


@pytest.mark.parametrize("hosts", ["[]", "w1", "[3]", "['*.*']", "['w 1']", "['']", "['../w1']"])
def test_hosts_that_cannot_be_are_mistakes(tmp_path: Path, hosts: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"a: {{sha256: {'0' * 64}, scopes: [hook], hosts: {hosts}}}\n")
    path.chmod(0o600)
    with pytest.raises(SettingError, match="hosts"):
        read(path)


def test_hosts_are_for_hooks_alone(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="scope hook alone"):
        add(tmp_path / "tokens.yaml", "a", {Scope.HOOK, Scope.OPERATE}, hosts=["w1"])
    assert not (tmp_path / "tokens.yaml").exists()


def test_an_expiry_that_has_passed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.yaml"
    today = datetime.now(UTC).date()
    for day in (date(2020, 1, 1), today):
        assert cli.main(["token", "a", "--scope", "hook", "--expires", str(day), "--file", str(path)]) == cli.USAGE
        assert "has passed" in capsys.readouterr().err
    assert not path.exists()
    tomorrow = str(today + timedelta(days=1))
    assert cli.main(["token", "a", "--scope", "hook", "--expires", tomorrow, "--file", str(path)]) == cli.OK


def test_names_that_mean_something_in_yaml_are_names(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    for name in ("true", "null", "12", "2027-01-01", "1e5"):
        add(path, name, {Scope.READ})
    assert [token.name for token in read(path)] == ["true", "null", "12", "2027-01-01", "1e5"]


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("open_umask")
def test_a_thousand_workers_have_their_tokens_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, names, directory = tmp_path / "tokens.yaml", tmp_path / "hosts", tmp_path / "made" / "here"
    hosts = [f"worker{number}.example" for number in range(1000)]
    names.write_text("# the pool\n" + "\n".join(hosts) + "\n\nworker1.example  # twice\n")
    command = [
        "token", "--workers", str(names), "--directory", str(directory), "--owner", "nobody", "--file", str(path),
    ]  # fmt: skip
    assert cli.main(command) == cli.OK
    assert (mode(path), mode(directory)) == (0o600, 0o700)
    files = sorted(directory.iterdir())
    assert sorted(file.name for file in files) == sorted(f"{host}.token" for host in hosts)
    assert {(mode(file), file.owner()) for file in files} == {(0o600, "nobody")}
    tokens = Tokens(path)
    for host in ("worker0.example", "worker999.example"):
        secret = (directory / f"{host}.token").read_text().strip()
        assert secret not in path.read_text()
        found = tokens.find(secret)
        assert isinstance(found, Token)
        assert (found.name, found.hosts, found.scopes) == (host, (host,), frozenset({Scope.HOOK}))
    # Again, with one host more: those that are there stay.
    before = path.read_text()
    names.write_text("\n".join([*hosts, "new.example"]))
    assert cli.main(command) == cli.OK
    assert path.read_text().startswith(before)
    assert (directory / "new.example.token").exists()
    said = capsys.readouterr().out
    assert f"\n1 token in {directory}, in HOST.token; " in said
    assert "1000 hosts have one already; remove their lines to make others." in said
    names.write_text("new.example\nmore.example\nlast.example")
    assert cli.main(command) == cli.OK
    said = capsys.readouterr().out
    assert said.startswith(f"2 tokens in {directory}, each in HOST.token; ")
    assert "1 host has one already; remove its line to make others." in said


def test_where_one_token_cannot_be_kept_there_is_none(tmp_path: Path) -> None:
    path, directory = tmp_path / "tokens.yaml", tmp_path / "made"
    add_all(path, {"ops": None}, {Scope.OPERATE})
    before = path.read_text()
    with pytest.raises(SettingError, match="no user"):
        add_workers(path, ["w1", "w2"], directory, owner="nobody-of-that-name")
    assert path.read_text() == before
    assert not directory.exists()
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(SettingError, match="may write there"):
        add_workers(path, ["w1"], directory)
    directory.chmod(0o755)
    (directory / "w1.token").write_text("somebody's")
    with pytest.raises(SettingError, match="there already"):
        add_workers(path, ["w1"], directory)
    assert path.read_text() == before


@pytest.mark.usefixtures("open_umask")
def test_a_token_in_a_file_is_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "tokens.yaml", tmp_path / "worker.token"
    output.write_text("old")
    command = ["token", "w1", "--scope", "hook", "--host", "w1", "--output", str(output), "--file", str(path)]
    assert cli.main(command) == cli.OK
    assert mode(output) == 0o600
    assert Tokens(path).find(output.read_text().strip()) is not None
    assert capsys.readouterr().out == ""
    os.umask(0o777)
    assert mode(write_secret(tmp_path / "other", "x")) == 0o600


@pytest.mark.parametrize(
    "wrong", [["--output", "/nowhere/gateway1.token"], ["--output", "made", "--owner", "nobody-here"]]
)
def test_a_token_that_cannot_be_written_is_none_and_its_name_is_free(
    tmp_path: Path, wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["token", "gateway1", "--scope", "gateway", "--file", "tokens.yaml"]
    assert cli.main([*command, *wrong]) == cli.USAGE
    assert capsys.readouterr().err.startswith("lark: ")
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*command, "--output", "gateway1.token"]) == cli.OK


def test_all_tokens_of_a_large_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    made = add_all(path, {f"w{number}": None for number in range(3000)}, {Scope.HOOK})
    tokens = Tokens(path)
    assert all(tokens.find(secret) is not None for secret in made.values())
    assert tokens.find("lark_nobody's") is None


@pytest.fixture
def mutual(tmp_path: Path) -> Iterator[tuple[Running, Path, dict[str, tuple[Path, Path]]]]:
    """A server that asks for certificates, its own, and those of two workers."""
    cert, key = certificate(tmp_path)
    workers = {}
    for name in ("worker1.example", "worker2.example"):
        made, request = tmp_path / f"{name}.pem", tmp_path / f"{name}.csr"
        for command in (
            ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
             "-keyout", str(tmp_path / f"{name}.key"), "-out", str(request)],
            ["x509", "-req", "-in", str(request), "-CA", str(cert), "-CAkey", str(key), "-CAcreateserial", "-out",
             str(made), "-days", "2"],
        ):  # fmt: skip
            subprocess.run(["openssl", *command], check=True, capture_output=True)
        workers[name] = (made, tmp_path / f"{name}.key")
    running = Running(tmp_path, rest_tls_cert=str(cert), rest_tls_key=str(key), rest_tls_ca=str(cert))
    yield running, cert, workers
    running.server.stop()


def test_over_mutual_tls_a_workers_certificate_names_its_host(
    mutual: tuple[Running, Path, dict[str, tuple[Path, Path]]],
) -> None:
    running, authority, workers = mutual

    def client(scope: str, worker: str = "") -> Client:
        cert, key = workers[worker] if worker else (None, None)
        url = f"https://localhost:{running.tcp.port}"
        return Client(url, TOKENS[scope], ca=authority, cert=cert, key=key)

    # The token alone is good for every host.
    job = client("hook", "worker1.example").register(post_body())["id"]
    with pytest.raises(ProblemError, match=r"is that of worker2\.example, not of worker1\.example") as caught:
        client("hook", "worker2.example").renew(job)
    assert (caught.value.status, caught.value.problem["type"]) == (403, "urn:lark:problem:host")
    with pytest.raises(ProblemError, match="needs a certificate"):
        client("hook").renew(job)
    assert client("hook", "worker1.example").renew(job)["id"] == job
    # Operators need none, and are bound by none.
    assert client("read").job(job)["id"] == job
    assert client("operate", "worker2.example").job(job)["id"] == job
    assert Client(f"unix:{running.unix.path}", TOKENS["hook"]).renew(job)["id"] == job
