"""Descriptions of values that REST returns, beside their types: each member is ``Annotated`` with its meaning.

The JSON and the OpenAPI document are made of that (``rest/schemas/described.py``), so that what is shown stands in one
place:

    datapath: Annotated[Dpid, "The switch"]
    since: Annotated[At | None, "Time when it connected"] = None
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias


class Form(Enum):
    """The form of a member in JSON, where its type does not determine it.

    A member without one is written as its type: text, number, truth, or a list of another value that describes itself.
    """

    TIME = "date-time"
    DATAPATH = "datapath"


# Seconds since 1970; ISO 8601 in JSON.
At: TypeAlias = Annotated[float, Form.TIME]
# A datapath id, 16 hexadecimal digits.
Dpid: TypeAlias = Annotated[str, Form.DATAPATH]
