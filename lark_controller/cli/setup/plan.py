"""The plan of ``lark setup``: everything is read and checked, and what is to be written is known, before a file is
made."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lark_controller
from lark_common.errors import PolicyError, SettingError
from lark_common.runs import Address, Network
from lark_common.settings_table import lines_of
from lark_controller.cli.setup import texts
from lark_controller.cli.setup.database import try_as
from lark_controller.cli.setup.files import File, Service, directory_mistakes, own
from lark_controller.cli.setup.holders import Certificates, Pair
from lark_controller.policies import file as policy_file
from lark_controller.rest.joins import certificates
from lark_controller.rest.joins.certificates import LONGEST_NAME, Authority, Subject
from lark_controller.rest.token_files import SUFFIX
from lark_controller.rest.tokens import Scope, Token, is_among
from lark_controller.rest.tokens import read as read_tokens
from lark_controller.rest.whole_files import read
from lark_controller.settings import Settings

OPERATOR: Final = "operator"
WORKER_TOKEN: Final = f"worker{SUFFIX}"
# Mistakes that are printed; a list of a thousand workers may have as many.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The wish, as the command line has it; ``authority`` is the site's own, certificate and key."""

    names: tuple[str, ...]
    addresses: tuple[Address, ...]
    networks: tuple[Network, ...]
    gateways: tuple[Address, ...]
    nameservers: tuple[Address, ...]
    database_url: str
    workers: tuple[str, ...]
    directory: Path
    authority: tuple[Path, Path] | None
    days: int
    renew: bool
    joins: bool
    service: Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The site as it is, and the files to be written: these in their order, then tokens, then the file of settings.

    ``operator`` is true where an operator's token is made, ``tokens`` are the hosts that get one. ``database`` is the
    server in words, ``""`` for SQLite in the state directory. ``other_env`` are the hosts whose worker.env is another
    than would be made now, ``changed_workers`` those in whose directories something is written.
    """

    settings: Settings
    settings_file: File | None
    policy: File | None
    database: str
    authority: Pair
    own: tuple[Pair, ...]
    workers: Mapping[str, Pair]
    tokens: tuple[str, ...]
    operator: bool
    other_env: tuple[str, ...]
    changed_workers: frozenset[str]
    files: tuple[File, ...]

    @property
    def changes(self) -> bool:
        """True where something is to be written."""
        return bool(self.files or self.settings_file or self.tokens or self.operator)


def plan(request: Request) -> Plan:
    """Read what is there and decide what is to be made. Raises SettingError, PolicyError or StoreError, with every
    mistake that can be found at once."""
    directory = request.directory
    mistakes = [*directory_mistakes(directory, request.service), *_host_mistakes(request.workers)]
    _refuse(mistakes)
    settings, settings_file = _settings(request, mistakes)
    _refuse(mistakes)
    networks, policy = _policy(request, settings, mistakes)
    database = try_as(request.service, settings.database_url) if _is_chosen(settings) else ""
    key_rights = request.service.reads if request.joins else own(0o600)
    made = Certificates(directory, request.days, request.renew, certificates.now(), key_rights, mistakes)
    signing = made.authority(request.names[0], request.authority)
    if signing is None:
        _refuse(mistakes)
        raise AssertionError("unreachable: an authority that cannot be used is a mistake")
    authority, authority_pair = signing
    subject = Subject(request.names, request.addresses)
    pairs = [made.pair(authority, directory / name, subject, request.service.reads) for name in ("rest", "openflow")]
    workers = {
        host: made.pair(authority, worker_place(directory, host) / "switch", Subject((host,)), own(0o600))
        for host in request.workers
    }
    tokens = _tokens(request, settings, mistakes)
    port = texts.reached(settings.rest_listen)
    env = texts.workers(request.names[0], port, networks, request.gateways, request.nameservers).encode()
    of_workers = [
        file for host in request.workers for file in _worker_files(worker_place(directory, host), authority, env)
    ]
    joining = request.directory / texts.JOIN_SETTINGS
    if request.joins and not joining.exists():
        of_joins = texts.workers("", port, networks, request.gateways, request.nameservers).encode()
        of_workers.append(File(joining, of_joins, request.service.reads))
    mistakes += _place_mistakes(request, settings)
    _refuse(mistakes)
    found = tuple(pair for pair in pairs if pair is not None)
    of_hosts = {host: pair for host, pair in workers.items() if pair is not None}
    everything = [authority_pair, *found, *of_hosts.values()]
    files = [file for pair in everything for file in pair.files] + of_workers
    if policy is not None:
        files.append(policy)
    if not settings.tokens_file.exists():
        # Made by whoever adds the first token it would be that user's, and closed to the controller.
        files.append(File(settings.tokens_file, b"", request.service.owns))
    return Plan(
        settings=settings,
        settings_file=settings_file,
        policy=policy,
        database=database,
        authority=authority_pair,
        own=found,
        workers=of_hosts,
        tokens=tuple(host for host in request.workers if host in tokens),
        operator=OPERATOR in tokens,
        other_env=tuple(
            host for host in request.workers if read(worker_place(directory, host) / "worker.env") not in (None, env)
        ),
        changed_workers=frozenset(
            {file.path.parent.name for file in files if file.path.parent.parent == directory / "workers"}
            | tokens.intersection(request.workers)
        ),
        files=tuple(files),
    )


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        more = [f"and {len(mistakes) - _NAMED} more"] if len(mistakes) > _NAMED else []
        raise SettingError("\n".join([*mistakes[:_NAMED], *more]))


def _host_mistakes(hosts: Sequence[str]) -> Iterator[str]:
    for host in hosts:
        if len(host) > LONGEST_NAME:
            yield f"{host}: a certificate's name has at most {LONGEST_NAME} characters"
        if host == OPERATOR:
            yield f"{host}: it is the name of the operator's token; accepted: the host's name with its domain"


def worker_place(directory: Path, host: str) -> Path:
    """The directory of what a worker gets."""
    return directory / "workers" / host


def _settings(request: Request, mistakes: list[str]) -> tuple[Settings, File | None]:
    """The controller's settings, and the file where it is to be written: a file that sets nothing is added to, any
    other is the site's, and must do what workers and switches need."""
    path = request.directory / "lark.env"
    there = read(path)
    before = _decoded(path, there or b"")
    if not lines_of(before):
        if request.database_url:
            texts.plain("--database-url", request.database_url)
        texts.plain("--directory", str(request.directory))
        text = texts.controllers(request.directory, request.database_url)
        if request.joins:
            text += texts.joins(request.directory, signs=request.authority is None)
        whole = text if not before else before + ("" if before.endswith("\n") else "\n") + "\n" + text
        rights = request.service.reads
        return texts.loaded(path, text), File(path, whole.encode(), rights, replaces=there is not None)
    settings = texts.loaded(path, before)
    if request.database_url and request.database_url != lines_of(before).get("LARK_DATABASE_URL"):
        mistakes.append(
            f"{path}: it has another LARK_DATABASE_URL than --database-url; change the file, or leave it out"
        )
    expected = {
        "LARK_REST_TLS_CERT": (settings.rest_tls_cert, request.directory / "rest.pem"),
        "LARK_REST_TLS_KEY": (settings.rest_tls_key, request.directory / "rest.key"),
        "LARK_OPENFLOW_TLS_CERT": (settings.openflow_tls_cert, request.directory / "openflow.pem"),
        "LARK_OPENFLOW_TLS_KEY": (settings.openflow_tls_key, request.directory / "openflow.key"),
        "LARK_OPENFLOW_TLS_CA": (settings.openflow_tls_ca, request.directory / "ca.pem"),
    }
    if request.joins:
        expected["LARK_JOIN_SETTINGS"] = (settings.join_settings, request.directory / texts.JOIN_SETTINGS)
    mistakes += [
        f"{path}: {name}={has or ''}; accepted: {accepted}"
        for name, (has, accepted) in expected.items()
        if has != accepted
    ]
    for name, listens, port in (
        ("LARK_REST_LISTEN", settings.rest_listen, texts.REST_PORT),
        ("LARK_OPENFLOW_TLS_LISTEN", settings.openflow_tls_listen, texts.OPENFLOW_PORT),
    ):
        if not texts.reached(listens):
            shown = ",".join(map(str, listens))
            mistakes.append(f"{path}: {name}={shown}; accepted: an address that workers reach, such as 0.0.0.0:{port}")
    if mistakes:
        mistakes.append(f"{path} is yours and is not changed: write these settings into it, or move it away")
    return settings, None


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: byte {error.start} is not UTF-8") from None


def _is_chosen(settings: Settings) -> bool:
    """True where the database is not the file in the state directory, which the unit makes at its start."""
    return settings.database_url != f"sqlite:///{(settings.state_dir / 'lark.db').absolute()}"


def _policy(request: Request, settings: Settings, mistakes: list[str]) -> tuple[tuple[Network, ...], File | None]:
    """The job networks, and the policy's file where it is to be written: where there is none, or the package's example.

    A policy of the site's has the jobs' networks itself.
    """
    path = settings.policy_file
    content = read(path)
    hosts = [each for each in (*request.gateways, *request.nameservers) if any(each in net for net in request.networks)]
    if content is None or hashlib.sha256(content).digest() in set(_examples()):
        if not request.networks:
            mistakes.append("--networks is needed for the first policy: the networks of jobs' addresses")
            return (), None
        text = texts.policy(request.networks, tuple(dict.fromkeys(hosts)))
        try:
            policy_file.load(text, "policy")
        except PolicyError as error:
            mistakes += [f"--networks: {each.problem}; accepted: {each.accepted}" for each in error.mistakes]
        rights = request.service.reads
        networks, made = request.networks, File(path, text.encode(), rights, replaces=content is not None)
    else:
        policy = policy_file.load(_decoded(path, content), str(path))
        networks, made = policy.job_networks, None
        if request.networks and set(request.networks) != set(networks):
            has = ",".join(map(str, networks)) or "none"
            mistakes.append(f"{path}: its job networks are {has}; accepted for --networks: the same, or nothing")
        mistakes += [
            f"{path}: {each} is not among networks.hosts, so a job may get that address; add it there"
            for each in (*request.gateways, *request.nameservers)
            if any(each in network for network in networks) and not any(each in host for host in policy.hosts)
        ]
    mistakes += [
        f"--gateways: {each} is in no job network; accepted: addresses on the jobs' own link"
        for each in request.gateways
        if not any(each in network for network in networks)
    ]
    return networks, made


def _examples() -> list[bytes]:
    """The examples of a policy that a package, a wheel or a checkout brings, as hashes."""
    places = (
        Path("/usr/share/lark-controller"),
        Path(sys.prefix) / "share" / "lark-controller",
        Path(lark_controller.__file__).parents[1] / "etc",
    )
    files = [place / "policy.yaml" for place in places]
    return [hashlib.sha256(content).digest() for file in files if (content := read(file)) is not None]


def _worker_files(place: Path, authority: Authority, env: bytes) -> list[File]:
    """The authority's certificates, where this worker does not have them, and its settings, where it has none."""
    found = []
    known = read(place / "ca.pem")
    if known != authority.bundle:
        found.append(File(place / "ca.pem", authority.bundle, own(0o644), replaces=known is not None))
    if not (place / "worker.env").exists():
        found.append(File(place / "worker.env", env, own(0o600)))
    return found


def _tokens(request: Request, settings: Settings, mistakes: list[str]) -> set[str]:
    """The names of the tokens that are to be made. A token whose line was taken away is not put in force again."""
    path = settings.tokens_file
    present = {token.name: token for token in read_tokens(path)} if path.exists() else {}
    needed = set() if OPERATOR in present else {OPERATOR}
    for host in request.workers:
        file = worker_place(request.directory, host) / WORKER_TOKEN
        token = present.get(host)
        if token is None:
            needed.add(host)
        elif (wrong := _token_mistake(token, host, file)) != "":
            mistakes.append(f"{file}: {wrong}, or remove the line of {host} in {path} to have another made")
    return needed


def _token_mistake(token: Token, host: str, file: Path) -> str:
    secret = read(file)
    if secret is None:
        return f"{host} has a token, but its file is not there; put it back"
    if hashlib.sha256(secret.strip()).hexdigest() != token.sha256:
        return f"it is not the token of {host}; put that one there"
    if Scope.HOOK not in token.scopes or not (token.hosts is None or is_among(host, token.hosts)):
        return f"it is a token that is not good for {host}; give its line the scope hook and the host"
    return ""


def _place_mistakes(request: Request, settings: Settings) -> Iterator[str]:
    """Files that are there and that the controller's user cannot read, and those that have no directory."""
    service = request.service
    made = (settings.policy_file, settings.tokens_file)
    files = (
        settings.rest_tls_cert, settings.rest_tls_key, settings.openflow_tls_cert, settings.openflow_tls_key,
        settings.openflow_tls_ca, *made,
    )  # fmt: skip
    for file in files:
        if file is not None and file.exists() and not service.may(file.stat(), 4):
            yield f"{file}: the user {service.name} cannot read it: chown {service.name} {file}"
    key = settings.join_key
    if key is not None and key.exists() and not all(service.may(each.stat(), 4) for each in (key, key.parent)):
        yield (
            f"{key}: the user {service.name} cannot read it, and LARK_JOIN_KEY names it: "
            f"chgrp {service.name} {key.parent} {key} && chmod 750 {key.parent} && chmod 640 {key}"
        )
    for file in made:
        if file.parent != request.directory and not file.parent.is_dir():
            yield f"{file}: there is no directory {file.parent}"
