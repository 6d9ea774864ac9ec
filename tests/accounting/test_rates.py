"""Rates of many jobs that are shown together."""

from __future__ import annotations

import pytest

from lark_controller.accounting import recent
from lark_controller.accounting.account import Account
from lark_controller.accounting.numeric import np
from lark_controller.accounting.rates import Rates
from lark_controller.accounting.recent import READINGS, Recent
from lark_controller.accounting.usage import Rate
from tests.accounting.test_ledger import job
from tests.fixtures.databases import NOW


def test_what_is_added_up_later_is_not_lost_where_a_job_ends_before() -> None:
    rates, account = Rates(), Account(job(1), "")
    names = account.group, account.user, account.host, account.access_point
    rates.change(*names, (50, 0, 0, 0, 0, 0, 1))
    rates.change_later([account], np.array([[10], [0], [0], [0], [0], [0], [0]]))
    # That job ends at the rate that it has by then, and another begins, before anybody asks.
    rates.change(*names, (-60, 0, 0, 0, 0, 0, -1))
    rates.change(*names, (5, 0, 0, 0, 0, 0, 1))
    assert rates.of("host") == {account.host: Rate(5)}
    rates.change(*names, (-5, 0, 0, 0, 0, 0, -1))
    assert rates.of("host") == {}
    assert rates.most("group", 9) == []


def test_rates_of_many_switches_are_added_up_without_anybody_asking() -> None:
    """Those of some thousand jobs wait, and no more."""
    rates, accounts = Rates(), [Account(job(number), "") for number in (1, 4, 7)]
    for _ in range(3000):
        rates.change_later(accounts, np.array([[1, 1, 1]] * 6 + [[0, 0, 0]]))
        assert len(rates._whose) < 2048 + len(accounts)
    assert sum(each.inward for each in rates.of("host").values()) == 9000


def test_of_a_large_pool_the_rates_of_some_jobs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "JOBS", 2)
    kept, columns = Recent(), np.array([[1, 2, 3]] * 6)
    for count in range(READINGS + 5):
        kept.keep_all([1, 2, 3], NOW + 10 * count, columns)
    found = [kept.of(number) for number in (1, 2, 3)]
    assert [len(each) for each in found] == [READINGS, READINGS, 0]
    assert found[1][-1] == (NOW + 10 * (READINGS + 4), Rate(2, 2, 2, 2, 2, 2))
