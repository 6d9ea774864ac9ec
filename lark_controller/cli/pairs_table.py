"""The pairs of a job or an application, with advice for each, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lark_controller.cli.printing import clean, table


def show(found: Mapping[str, Any]) -> None:
    """A table of pairs, rates in Mb/s, below the sentence for all of them."""
    print(clean(found["sentence"]))
    if not found["pairs"]:
        return
    head = ("PAIR", "ASKED", "MEAN", "HIGHEST", "THROTTLED", "LOST", "ADVISED", "")
    table(head, [_row(each) for each in found["pairs"]])
    if found["left_out"]:
        print(f"And {found['left_out']} more, which are not kept.")
    if found["advised"] is not None and len(found["pairs"]) > 1:
        print(f"One rate for each of them: {found['advised']} Mb/s")


def _row(pair: Mapping[str, Any]) -> tuple[object, ...]:
    least, most = pair["asked_least"], pair["asked"]
    asked = f"{most:g}" if least == most else f"{least:g}-{most:g}"
    counted = pair["seconds"] > 0
    return (
        pair["name"],
        asked + (" steady" if pair["steady"] else ""),
        f"{pair['mean']:.2f}" if counted else "-",
        f"{pair['highest']:.2f}" if counted else "-",
        f"{100 * pair['throttled']:.0f} %" if counted else "-",
        pair["dropped"] if counted else "-",
        "-" if pair["advised"] is None else pair["advised"],
        pair["reason"] or pair["verdict"],
    )
