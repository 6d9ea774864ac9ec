"""Portions of accounts: those that are gone through before others get the lock, and those that are written together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from lark_controller.accounting.account import Account

# Accounts that are gone through before others get the lock.
_AT_ONCE: Final = 200
# Portions to be written whose jobs are those of the same hosts.
_HOSTS_TOGETHER: Final = 8

T = TypeVar("T")


def parts(values: Iterable[T]) -> Iterator[list[T]]:
    """Values of accounts, each list of them short enough to be gone through under the lock."""
    rest = iter(values)
    while part := list(islice(rest, _AT_ONCE)):
        yield part


def by_host(numbers: Iterable[int], accounts: Mapping[int, Account]) -> list[int]:
    """The numbers of the accounts that are there, those of one host together."""
    hosts: dict[str, list[int]] = {}
    for number in numbers:
        if (account := accounts.get(number)) is not None:
            hosts.setdefault(account.host, []).append(number)
    # One sort of all of them would hold every other thread up.
    return [number for host in sorted(hosts) for number in sorted(hosts[host])]


def portions(numbers: Sequence[int], accounts: Mapping[int, Account], most: int) -> Iterator[list[int]]:
    """Numbers that are in order of the host, in portions of up to ``most``: each of few hosts and few users."""

    def user_of(number: int) -> tuple[str, str]:
        account = accounts.get(number)
        return ("", "") if account is None else (account.group, account.user)

    for start in range(0, len(numbers), _HOSTS_TOGETHER * most):
        part = list(numbers[start : start + _HOSTS_TOGETHER * most])
        if len(part) > most:
            part.sort(key=user_of)
        yield from (part[place : place + most] for place in range(0, len(part), most))
