"""The table of a Linux gateway, as a value."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from lark_worker.rules.one_to_one import Mapped, table, without_new
from lark_worker.rules.table import Table

EXTERNAL, OWN = IPv4Address("198.51.100.65"), IPv4Address("10.64.0.1")


def made(*opened: str) -> Table:
    mapped = [Mapped(EXTERNAL, OWN, opened)]
    return table("t", "wan", [IPv4Network("198.51.100.64/30")], [IPv4Network("10.64.0.0/24")], mapped)


def spans(*opened: str) -> list[str]:
    return [each.removesuffix(f" : {OWN}").rpartition(" . ")[2] for each in made(*opened).sets["in_ports"].elements]


def test_spans_of_ports_of_one_job_do_not_overlap() -> None:
    assert spans("tcp/70-90", "tcp/80", "tcp/85-95", "tcp/96", "tcp/98", "tcp/70-90") == ["70-96", "98"]
    assert spans("udp/80", "tcp/80") == ["80", "80"]
    assert made("tcp", "tcp/80").sets["in_protocols"].elements == (f"{EXTERNAL} . tcp : {OWN}",)


def test_what_goes_is_gone_before_another_takes_its_place() -> None:
    before, after = made("tcp/80", "tcp/90"), made("tcp/80-85", "tcp/90", "udp/90")
    between = without_new(after, before)
    assert between.sets["in_ports"].elements == (f"{EXTERNAL} . tcp . 90 : {OWN}",)
    assert between.chains == after.chains
