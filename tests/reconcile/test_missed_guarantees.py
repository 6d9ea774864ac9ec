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
    host_of_uplink,
)

JOB = Whose("88e70ea0b425ce1e", called="job 103.0 of alice", place="uplink u of w")
CMS = Whose("00000000000000c0", "cms", "group cms", "port wan")
OTHER = Whose("00000000000000c0", "atlas", "group atlas", "port wan")
TEXT = "job 103.0 of alice got 1.0 of 10 Mb/s at uplink u of w for 60 s, and had more to send"
GROUP_TEXT = "group cms got 1.0 of 10 Mb/s at port wan for 60 s, and had more to send"
PROMISED = "it gets what it was promised, or has no more to send"


class Told(MissedGuarantees):
    """Readings a minute apart, and all that is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[Happening] = []
        super().__init__(lambda: self.now)

    def sees(self, missed: str = "", whose: Whose = JOB, source: object = "w") -> list[str]:
        self.now += 60.0
        return self._tell(self.read(source, {whose: Reading(60.0, missed)}, [whose]))

    def goes_on(self, *lines: tuple[str, str, str]) -> None:
        entries = [AuditEntry(number, 0.0, "controller", *each) for number, each in enumerate(lines)]
        self.load(entries, lambda job: f"job {job}", lambda whose: 0xC0 if whose.group else host_of_uplink(whose.place))

    def looks(
        self,
        is_live: Callable[[str], bool] = lambda _job: True,
        is_promised: Callable[[Whose], bool] = lambda _whose: True,
    ) -> list[str]:
        return self._tell(self.look(is_live, is_promised))

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
        Happening(whose.subject, OVER, f"{whose.called} at {whose.place}: {PROMISED}"),
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
    assert told.lines[-1] == Happening(JOB.subject, OVER, "job 103.0 of alice at uplink u of w: it is over")


def test_it_ends_where_the_policy_promises_nothing_any_more() -> None:
    told = Told()
    told.sees(GROUP_TEXT, CMS, 0xC0)
    read = [told.read(0xC0, {}, promised) for promised in (None, [OTHER], None, [CMS], [OTHER], [OTHER])]
    # Where it is not known what is promised nothing is over; a queue may be made anew between two readings.
    assert [len(each) for each in read] == [0, 0, 0, 0, 1, 0]
    assert read[4] == [Happening(CMS.subject, OVER, "group cms at port wan: it is promised nothing there any more")]


def test_of_one_that_nobody_reads_any_more_that_is_told() -> None:
    told = Told()
    told.sees(TEXT)
    told.now += 200.0
    assert told.looks() == []
    told.now += 100.0
    assert [told.looks() for _ in range(2)] == [[UNREAD], []]
    assert told.lines[-1].detail == (
        "job 103.0 of alice at uplink u of w: its queue was not read for 300 s; whether it gets what it was promised is"
        " not known"
    )


def test_a_controller_that_takes_over_tells_the_ends_of_those_that_were_told_before() -> None:
    trail = [
        (MISSED, JOB.subject, TEXT),
        (MISSED, CMS.subject, GROUP_TEXT),
        (MISSED, CMS.subject, GROUP_TEXT.replace("cms", "atlas")),
        (UNREAD, CMS.subject, "group atlas at port wan: its queue was not read for 300 s; whether it gets"),
        (MISSED, "1" * 16, TEXT),
        (OVER, "1" * 16, f"job 104.0 of alice at uplink u of w: {PROMISED}"),
        (MISSED, "2" * 16, TEXT),
    ]
    told = Told()
    told.goes_on(*trail)
    # One has ended meanwhile, one goes on, one is over.
    assert told.looks(lambda job: job != "2" * 16) == [OVER]
    assert [told.sees(TEXT), told.sees(), told.sees()] == [[], [], [OVER]]
    assert [told.sees("", CMS, 0xC0), told.sees("", CMS, 0xC0)] == [[], [OVER]]
    assert [told.sees("", OTHER, 0xC0), told.sees("", OTHER, 0xC0)] == [[], []]
    assert [(each.subject, each.detail) for each in told.lines] == [
        ("2" * 16, f"job {'2' * 16} at uplink u of w: it is over"),
        (JOB.subject, f"job 103.0 of alice at uplink u of w: {PROMISED}"),
        (CMS.subject, f"group cms at port wan: {PROMISED}"),
    ]


@pytest.mark.parametrize(("whose", "text"), [(JOB, TEXT), (CMS, GROUP_TEXT)])
def test_one_that_the_policy_has_no_more_since_the_controller_before_ends_at_the_first_look(
    whose: Whose, text: str
) -> None:
    told = Told()
    told.goes_on((MISSED, whose.subject, text))
    assert told.looks(is_promised=lambda each: each.key != whose.key) == [OVER]
    assert told.lines[-1].detail.endswith(f" at {whose.place}: the policy promises it nothing any more")
    # Of one that was read here the readings say when its queue has gone.
    told.sees(text, whose)
    assert told.looks(is_promised=lambda _whose: False) == []


@pytest.mark.parametrize(("whose", "text", "source"), [(JOB, TEXT, "w"), (CMS, GROUP_TEXT, 0xC0)])
def test_readings_after_a_takeover_say_that_a_port_has_no_such_queue_any_more(
    whose: Whose, text: str, source: object
) -> None:
    told = Told()
    told.goes_on((MISSED, whose.subject, text))
    read = [told.read(source, {}, promised) for promised in (None, (), ())]
    assert [[each.action for each in lines] for lines in read] == [[], [], [OVER]]


def test_one_that_comes_and_goes_does_not_fill_the_trail() -> None:
    told = Told()
    found = [action for number in range(600) for action in told.sees(TEXT if number % 3 == 0 else "")]
    # 10 hours: four at once, and one in a quarter of an hour; each has its end.
    assert found == [MISSED, OVER] * (len(found) // 2)
    assert 2 * 40 <= len(found) <= 2 * 46


def test_each_port_has_its_own_beginning_and_end() -> None:
    told = Told()
    for one, sentence, source in ((JOB, TEXT, "w"), (CMS, GROUP_TEXT, 0xC0)):
        more = one._replace(place=one.place.replace("u of", "v of").replace("wan", "wan-fast"))
        other = sentence.replace(one.place, more.place)

        def reads(*missed: str, which: tuple[Whose, Whose] = (one, more), at: object = source) -> list[Happening]:
            told.now += 60.0
            found = {whose: Reading(60.0, text) for whose, text in zip(which, missed, strict=True)}
            return told.read(at, found, which)

        assert [each.detail for each in reads(sentence, "")] == [sentence]
        # The second begins within the hour of the first, and goes on when that has its end.
        assert [each.detail for each in reads(sentence, other)] == [other]
        assert reads("", other) == []
        assert [each.detail for each in reads("", other)] == [f"{one.called} at {one.place}: {PROMISED}"]
        assert reads("", "") == []
        assert [each.detail for each in reads("", "")] == [f"{one.called} at {more.place}: {PROMISED}"]


def test_the_next_controller_knows_the_ports() -> None:
    more = JOB._replace(place="uplink v of w")
    trail = [(MISSED, TEXT.replace("uplink u", "uplink u/7")), (MISSED, TEXT.replace("uplink u", "uplink v"))]
    trail += [(OVER, f"{JOB.called} at {JOB.place}: {PROMISED}")]
    told = Told()
    told.goes_on(*((action, JOB.subject, detail) for action, detail in trail))
    found = [told.read("w", {JOB: Reading(60.0), more: Reading(60.0)}, [JOB, more]) for _ in range(2)]
    assert [[each.detail for each in lines] for lines in found] == [[], [f"{more.called} at {more.place}: {PROMISED}"]]


def test_a_worker_that_names_many_uplinks_does_not_fill_the_trail() -> None:
    told = Told()
    found = [told.sees(TEXT, JOB._replace(place=f"uplink u{number} of w")) for number in range(200)]
    assert found.count([MISSED]) < 16 + 200 * 60 // 225 + 2
