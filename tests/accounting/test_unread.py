"""The jobs whose rates are not known: after a start until they are read twice, and while nothing reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lark_common.errors import SwitchError
from lark_common.runs import NetworkType
from lark_controller.accounting.drops import DropSum
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, WorkerCounts
from lark_controller.accounting.reporting import Reporting
from lark_controller.accounting.usage import IDLE
from tests.accounting.test_ledger import job
from tests.fixtures.databases import NOW


def read(ledger: Ledger, at: float, packets: int, number: int = 1) -> None:
    """A reading of a job that has sent so many packets, all of which were dropped."""
    flows = [FlowReading(CountKind.DROP_OUT, packets, 100 * packets)]
    ledger.read(number, NOW + at, PortReading(packets, 100 * packets, 0, 0), flows, port_age=1.0)


def unread(ledger: Ledger) -> list[int]:
    """The numbers of the jobs that are."""
    return [number for number in range(1, 4) if ledger.unread(number.__eq__)]


def report(ledger: Ledger, at: float, packets: int, number: int = 1) -> None:
    ledger.report(number, NOW + at, WorkerCounts(PortReading(packets, 100 * packets, 0, 0)), False)


def test_a_job_whose_use_was_not_written_has_no_rate_before_its_second_reading() -> None:
    ledger = Ledger()
    ledger.resume(job(), "group_cms")
    assert unread(ledger) == [1]
    # All that it has sent in its life, long ago for all that is known.
    read(ledger, 5, 1_000)
    found = ledger.usage(1)
    assert found is not None
    assert (found.usage.packets_out, found.rate, ledger.drop_sum()) == (1_000, IDLE, DropSum(0, 0.0))
    assert found.peak.outward == 0
    assert unread(ledger) == [1]
    read(ledger, 15, 1_010)
    assert not ledger.unread()
    assert ledger.drop_sum() == DropSum(1, 1.0)
    found = ledger.usage(1)
    assert found is not None
    assert found.rate.outward == 800


def test_a_reading_that_is_the_stored_one_is_a_rate() -> None:
    ledger = Ledger()
    ledger.begin(job(), "")
    read(ledger, 10, 50)
    (entry,) = ledger.entries([1])
    ledger = Ledger()
    ledger.resume(job(), "", entry.readings, entry.usage)
    read(ledger, 20, 50)
    assert not ledger.unread()
    assert ledger.drop_sum().jobs == 0


def test_a_job_without_a_network_is_not_waited_for_nor_one_that_is_new_or_over() -> None:
    ledger = Ledger()
    ledger.resume(replace(job(1), network_type=NetworkType.NONE), "")
    ledger.resume(job(2, port="p2"), "")
    ledger.begin(job(3, port="p3"), "")
    assert unread(ledger) == [2]
    ledger.leaves(2)
    ledger.close(2, NOW + 1)
    ledger.lost([2])
    assert not ledger.unread()


def test_jobs_whose_switch_goes_are_unread_until_it_is_read_again() -> None:
    ledger = Ledger()
    ledger.begin(job(), "")
    read(ledger, 10, 0)
    ledger.lost([1, 99])
    assert unread(ledger) == [1]
    read(ledger, 20, 0)
    assert not ledger.unread()
    ledger.lost([1])
    # A policy that does not count it: that is said with another number.
    ledger.uncount([1])
    assert not ledger.unread()


def test_a_job_that_comes_to_another_group_or_port_is_unread_while_it_moves_something() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.begin(job(number, port=f"p{number}"), "")
    read(ledger, 10, 0, 1)
    read(ledger, 10, 10, 2)
    for number in (1, 2):
        ledger.begin(job(number, port=f"p{number}"), "group_cms")
    assert unread(ledger) == [2]
    read(ledger, 20, 20, 2)
    assert not ledger.unread()


def test_who_is_idle_reports_nothing_and_is_known_to_be_idle() -> None:
    ledger = Ledger()
    reporting = Reporting(ledger)
    for number in (1, 2, 3):
        ledger.resume(replace(job(number, port=None), network_type=NetworkType.NAT), "")
    reporting.expected([1, 2, 3], 0.0)
    for at, packets in ((10, 5), (40, 50)):
        reporting.reported(1, at, 30.0, None)
        report(ledger, at, packets)
    reporting.reported(2, 40, 30.0, None)
    report(ledger, 40, 50, 2)
    reporting.look(74)
    # One report is not two, and none in so short a time says nothing.
    assert unread(ledger) == [2, 3]
    reporting.look(75)
    assert unread(ledger) == [2]
    # The first falls silent while it sends; of the second a report follows.
    reporting.reported(2, 70, 30.0, None)
    report(ledger, 70, 60, 2)
    assert not ledger.unread()
    reporting.look(40 + 75)
    assert unread(ledger) == [1]
    report(ledger, 130, 60)
    assert not ledger.unread()


def test_jobs_of_a_worker_that_was_not_heard_since_a_start_are_not_idle() -> None:
    ledger = Ledger()
    reporting = Reporting(ledger)
    for number in (1, 2, 3):
        ledger.resume(replace(job(number, port=None), network_type=NetworkType.NAT), "")
    reporting.expected([1, 2, 3], 0.0)
    asked: list[list[int]] = []

    def silent(numbers: Sequence[int]) -> list[int]:
        asked.append(sorted(numbers))
        # A report that comes meanwhile counts.
        reporting.reported(3, 75, 30.0, None)
        return [2, 3]

    reporting.look(75, silent)
    assert asked == [[1, 2, 3]]
    assert unread(ledger) == [2, 3]
    reporting.look(149, silent)
    assert len(asked) == 1
    # It is heard at last, and has nothing to report.
    reporting.look(151, lambda _numbers: ())
    assert unread(ledger) == []


def test_where_it_is_not_known_who_was_heard_all_is_looked_at_again() -> None:
    ledger = Ledger()
    reporting = Reporting(ledger)
    ledger.resume(replace(job(1, port=None), network_type=NetworkType.NAT), "")
    reporting.expected([1], 0.0)

    def stuck(_numbers: Sequence[int]) -> list[int]:
        raise SwitchError("the loop does not answer")

    with pytest.raises(SwitchError):
        reporting.look(75, stuck)
    assert unread(ledger) == [1]
    reporting.look(76)
    assert unread(ledger) == []
