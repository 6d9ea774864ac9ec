"""The exceptions of this package, apart from the tree of lark_common, which is not installed where jobs run."""


class ReservationError(Exception):
    """A reservation that was not made, with the reason as a sentence; the same on every rank."""


class AwayError(ReservationError):
    """The worker service or its controller does not answer now."""
