"""Of a missed guarantee the audit trail has the beginning and the end, each once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lark_controller.api.audit import AuditEntry, Happening
from lark_controller.reconcile.missed_guarantees import (
    MISSED,
    OVER,
    TELL_SECONDS,
    UNREAD,
    MissedGuarantees,
    Reading,
    Whose,
)

JOB = Whose("88e70ea0b425ce1e", called="job 103.0 of alice")
CMS = Whose("00000000000000c0", "cms", "group cms")
OTHER = Whose("00000000000000c0", "atlas", "group atlas")
TEXT = "job 103.0 of alice got 1.0 of 10 Mb/s at uplink u of w for 60 s, and had more to send"
GROUP_TEXT = "group cms got 1.0 of 10 Mb/s at port wan for 60 s, and had more to send"
PROMISED = "gets what it was promised, or has no more to send"


class Told(MissedGuarantees):
    """Readings a minute apart, and all that is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[Happening] = []
        super().__init__(lambda: self.now)

    def sees(self, missed: str = "", whose: Whose = JOB, source: object = "w") -> list[str]:
        self.now += 60.0
        return self._tell(self.read(source, {whose: Reading(60.0, missed)}, [whose]))

    def looks(self, is_live: Callable[[str], bool] = lambda _job: True) -> list[str]:
        return self._tell(self.look(is_live))

    def _tell(self, lines: list[Happening]) -> list[str]:
        self.lines += lines
        return [each.action for each in lines]


@pytest.mark.parametrize(("whose", "text"), [(JOB, TEXT), (CMS, GROUP_TEXT)])
def test_the_beginning_and_the_end_are_told_once(whose: Whose, text: str) -> None:
    told = Told()
    assert told.sees("", whose) == []
    assert [told.sees(text, whose) for _ in range(3)] == [[MISSED], [], []]
    # One that sends in bursts misses it again.
    assert [told.sees(each, whose) for each in ("", text, "", "", "", "")] == [[], [], [], [OVER], [], []]
    assert told.lines == [
        Happening(whose.subject, MISSED, text),
        Happening(whose.subject, OVER, f"{whose.called} {PROMISED}"),
    ]
    assert told.looks(lambda _job: False) == []
    assert told.sees(text, whose) == [MISSED]


def test_one_that_goes_on_is_told_again_each_hour() -> None:
    told = Told()
    found = [action for _ in range(int(2.5 * TELL_SECONDS / 60)) for action in told.sees(TEXT)]
    assert found == [MISSED] * 3


def test_it_ends_with_the_job_once() -> None:
    told = Told()
    told.sees(TEXT)
    assert told.looks() == []
    assert [told.looks(lambda _job: False) for _ in range(2)] == [[OVER], []]
    assert told.lines[-1] == Happening(JOB.subject, OVER, "job 103.0 of alice is over")


def test_it_ends_where_the_policy_promises_nothing_any_more() -> None:
    told = Told()
    told.sees(GROUP_TEXT, CMS, 0xC0)
    read = [told.read(0xC0, {}, promised) for promised in (None, [OTHER], None, [CMS], [OTHER], [OTHER])]
    # Where it is not known what is promised nothing is over; a queue may be made anew between two readings.
    assert [len(each) for each in read] == [0, 0, 0, 0, 1, 0]
    assert read[4] == [Happening(CMS.subject, OVER, "group cms is promised nothing there any more")]


def test_of_one_that_nobody_reads_any_more_that_is_told() -> None:
    told = Told()
    told.sees(TEXT)
    told.now += 200.0
    assert told.looks() == []
    told.now += 100.0
    assert [told.looks() for _ in range(2)] == [[UNREAD], []]
    assert told.lines[-1].detail == (
        "job 103.0 of alice: its queue was not read for 300 s; whether it gets what it was promised is not known"
    )


def test_a_controller_that_takes_over_tells_the_ends_of_those_that_were_told_before() -> None:
    trail = [
        (MISSED, JOB.subject, TEXT),
        (MISSED, CMS.subject, GROUP_TEXT),
        (MISSED, CMS.subject, GROUP_TEXT.replace("cms", "atlas")),
        (UNREAD, CMS.subject, "group atlas: its queue was not read for 300 s; whether it gets"),
        (MISSED, "1" * 16, TEXT),
        (OVER, "1" * 16, f"job 104.0 of alice {PROMISED}"),
        (MISSED, "2" * 16, TEXT),
    ]
    told = Told()
    entries = [AuditEntry(number, 0.0, "controller", *each) for number, each in enumerate(trail)]
    told.load(entries, lambda job: f"job {job}")
    # One has ended meanwhile, one goes on, one is over.
    assert told.looks(lambda job: job != "2" * 16) == [OVER]
    assert [told.sees(TEXT), told.sees(), told.sees()] == [[], [], [OVER]]
    assert [told.sees("", CMS, 0xC0), told.sees("", CMS, 0xC0)] == [[], [OVER]]
    assert [told.sees("", OTHER, 0xC0), told.sees("", OTHER, 0xC0)] == [[], []]
    assert [(each.subject, each.detail) for each in told.lines] == [
        ("2" * 16, f"job {'2' * 16} is over"),
        (JOB.subject, f"job 103.0 of alice {PROMISED}"),
        (CMS.subject, f"group cms {PROMISED}"),
    ]


def test_one_that_comes_and_goes_does_not_fill_the_trail() -> None:
    told = Told()
    found = [action for number in range(600) for action in told.sees(TEXT if number % 3 == 0 else "")]
    # 10 hours: four at once, and one in a quarter of an hour; each has its end.
    assert found == [MISSED, OVER] * (len(found) // 2)
    assert 2 * 40 <= len(found) <= 2 * 46
