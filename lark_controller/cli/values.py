"""Values of the command line's arguments: rates, times and dates, each refused with what is accepted."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import date

from lark_controller.policies.yaml_nodes import ACCEPTED_MEGABITS, megabits


def rate(text: str) -> float:
    """A rate in Mb/s, written as in a policy file: ``250Mbit``, ``1.5Gbit``, ``800kbit`` or a number of Mb/s."""
    value = megabits(text)
    if value is None:
        raise ArgumentTypeError(f"{text!r} is not a rate. Accepted: {ACCEPTED_MEGABITS}.")
    return value


def seconds(text: str) -> float:
    """A time of 0.1 to 86,400 seconds between two looks."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86_400:
        raise ArgumentTypeError(f"{text!r} is no number of seconds from 0.1 to 86400.")
    return value


def day(text: str) -> date:
    """A day, written YYYY-MM-DD."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day. Accepted: year, month and day, as 2027-01-31.") from None
