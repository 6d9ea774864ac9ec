"""The names of jobs that are shown together."""

from __future__ import annotations

from lark_common.runs import names


def test_a_job_is_called_by_its_number_and_by_its_access_point_where_two_have_that_number() -> None:
    jobs = [
        ("a", "103.0", "submit1#103.0#1"),
        ("b", "103.0", "submit2#103.0#1"),
        ("c", "7.1", "submit1#7.1#1"),
        # Two nodes of a parallel job, and one that no access point has named.
        ("d", "7.1", "submit1#7.1#1"),
        ("e", "103.0", "odd"),
    ]
    assert names(jobs) == {"a": "submit1#103.0", "b": "submit2#103.0", "c": "7.1", "d": "7.1", "e": "103.0"}
