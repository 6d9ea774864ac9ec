"""The site's own program at the start and at the end of each job's network namespace, with the job's ads."""

from __future__ import annotations

import os
from pathlib import Path

from lark_common import log
from lark_worker.errors import RefusedError
from lark_worker.life.site_program import run_program
from lark_worker.network.commands import NETNS
from lark_worker.records.records import Record


class SiteScript:
    """Runs the program ``path`` (None: there is none) as ``path start`` and ``path end``.

    The job ad, a line ``------`` and the machine ad are on its standard input. It runs as the service does, outside of
    the namespace, which ``LARK_NAMESPACE`` names.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __bool__(self) -> bool:
        """True if there is one."""
        return self._path is not None

    def start(self, record: Record) -> None:
        """Run the program once the namespace and the job's link stand. Raises RefusedError where it refuses the
        job."""
        if why := self._run("start", record):
            raise RefusedError(why)

    def end(self, record: Record) -> None:
        """Run the program before the namespace goes, whatever it answers."""
        if why := self._run("end", record):
            log.event("the site's program failed at a job's end", level=log.WARNING, job=record.id, reason=why)

    def _run(self, action: str, record: Record) -> str:
        """Run the program; returns the reason if it failed."""
        if self._path is None:
            return ""
        environment = {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "LARK_JOB_ID": record.id,
            "LARK_NAMESPACE": record.namespace,
            "LARK_NAMESPACE_PATH": str(NETNS / record.namespace),
            "LARK_EXTERNAL_INTERFACE": "" if record.network_type == "none" else record.port,
            "LARK_ADDRESSES": " ".join(record.addresses),
        }
        return run_program([str(self._path), action], record.body, environment).why
