"""The accounts of what HTCondor moves for jobs."""

from __future__ import annotations

from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import PortReading, TransferCounts
from lark_controller.accounting.usage import Rate
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW


def test_transfers_are_apart_from_the_jobs_own_use_and_go_on_after_a_restart() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 5, 500), port_age=1.0)
    assert ledger.transferred(1, NOW + 20, TransferCounts(8_000, 400, 5_000, 0, 1500), None)
    assert ledger.transferred(1, NOW + 30, TransferCounts(18_000, 400, 5_000, 0, 2500), 10.0)
    found = ledger.usage(1)
    assert found is not None
    assert found.usage[-5:] == (18_000, 400, 5_000, 0, 2500)
    assert (found.usage.bytes_in, found.rate.transfer_inward, found.rate.transfer_outward) == (500, 8_000, 0)
    # A reading of the port leaves them alone, and so does a switch that goes away.
    ledger.read(1, NOW + 40, PortReading(6, 600, 5, 500))
    ledger.quiet([1])
    assert ledger.rates()["group_cms"] == Rate(transfer_inward=8_000)
    assert ledger.flowing("user", 5)[0].rate.transfer_inward == 8_000
    assert ledger.sums()["group_cms"][-5:] == (18_000, 400, 5_000, 0, 2500)
    (entry,) = ledger.entries(ledger.changed())
    again = Ledger()
    again.begin(job(), "group_cms", entry.readings, entry.usage)
    # A worker that lost a few seconds of its own count has less: nothing is counted twice, and it goes on from there.
    assert again.transferred(1, NOW + 50, TransferCounts(17_000, 400, 5_000, 0, 2400), 10.0)
    assert again.transferred(1, NOW + 60, TransferCounts(20_000, 400, 5_000, 0, 3000), 10.0)
    assert used(again)[-5:] == (20_000, 400, 5_000, 0, 3000)


def test_transfers_of_a_job_without_a_network_are_written_when_they_happened() -> None:
    ledger = opened()
    assert ledger.transferred(1, NOW + 600, TransferCounts(8_000, 0, 0, 0, 1500), 30.0)
    (entry,) = ledger.entries(ledger.changed())
    assert (entry.begun, entry.at, entry.new.transfer_bytes_in) == (NOW + 570, NOW + 600, 8_000)
    ledger.wrote([entry])
    ledger.close(1, NOW + 700)
    assert not ledger.transferred(1, NOW + 800, TransferCounts(9_000, 0, 0, 0, 1500), 30.0)
    assert not ledger.transferred(2, NOW + 800, TransferCounts(9_000, 0, 0, 0, 1500), 30.0)
