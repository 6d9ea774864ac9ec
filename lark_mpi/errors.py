"""The exception of this package. It is no part of the tree of lark_common, which is not installed where jobs run."""


class ReservationError(Exception):
    """A reservation that was not made, with the reason as a sentence; the same on every rank."""
