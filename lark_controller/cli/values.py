"""Values of the command line's arguments: rates, times, dates, names, addresses; each refused with what is accepted."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from datetime import date
from ipaddress import ip_address, ip_network
from typing import Final

from lark_common.runs import Address, Network
from lark_controller.policies.rates import ACCEPTED_MEGABITS, megabits

# A name in DNS, of as many characters as a certificate's common name has.
_HOST_NAME: Final = re.compile(
    r"(?=.{1,64}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)

_DIGITS: Final = 9


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


def duration(text: str) -> float:
    """A number of seconds, more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    # Not a number is in no range.
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"{text!r} is no time. Accepted: a number of seconds, more than 0.")
    return value


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) > 0):
        raise ArgumentTypeError(f"{text!r} cannot be used. Accepted: a whole number from 1 on.")
    return int(text)


def span(text: str) -> float:
    """A time of a minute to seven days in seconds, written ``30m``, ``2h`` or ``7d``."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    value = int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]] if found else 0
    if not 60 <= value <= 604_800:
        raise ArgumentTypeError(f"{text!r} is no time. Accepted: a minute to seven days, as 30m, 2h, 7d.")
    return float(value)


def day(text: str) -> date:
    """A day, written YYYY-MM-DD."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day. Accepted: year, month and day, as 2027-01-31.") from None


def days(text: str) -> int:
    """A whole number of days from 1 to 7300."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 7300):
        raise ArgumentTypeError(f"{text!r} is no number of days. Accepted: a whole number from 1 to 7300.")
    return int(text)


def host_name(text: str) -> str:
    """The name of a host in DNS, of at most 64 characters, in small letters."""
    if not _HOST_NAME.fullmatch(text) or text.replace(".", "").isdigit():
        raise ArgumentTypeError(f"{text!r} is no host's name. Accepted: such as lark.example, at most 64 characters.")
    return text.lower()


def networks(text: str) -> tuple[Network, ...]:
    """Networks with commas between."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}. Accepted: networks such as 10.64.0.0/16,2001:db8:64::/48.") from None


def addresses(text: str) -> tuple[Address, ...]:
    """Addresses with commas between."""
    try:
        return tuple(ip_address(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}. Accepted: addresses such as 10.64.0.1,2001:db8:64::1.") from None
