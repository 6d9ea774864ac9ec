"""The ends of the certificates that the controller works with, for its metrics and its log.

They are read once, as the certificates themselves are: a file that is renewed counts from the next start on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.errors import SettingError
from lark_controller.api.metrics import Metrics
from lark_controller.rest.joins.certificates import read_certificates
from lark_controller.settings import Settings

# Days before an end from which each start warns of it.
SOON: Final = 30
_DAY: Final = 86_400.0


def ends(settings: Settings) -> Iterator[tuple[str, Path, datetime]]:
    """Each setting that names certificates, its file, and the end. A file that cannot be read is missed elsewhere.

    Of a chain that is shown all must be good: the first end counts. Of authorities one is enough: the last end counts.
    """
    for name in ("rest_tls_cert", "rest_tls_ca", "instance_ca", "openflow_tls_cert", "openflow_tls_ca"):
        path: Path | None = getattr(settings, name)
        try:
            found = () if path is None else read_certificates(path)
        except SettingError:
            continue
        if path is not None and found:
            choose = max if name.endswith("_ca") else min
            yield f"LARK_{name.upper()}", path, choose(each.not_valid_after_utc for each in found)


def note(settings: Settings, metrics: Metrics, now: datetime) -> None:
    """Write the ends into the metrics, and into the log those that are over or near."""
    for setting, path, end in ends(settings):
        metrics.certificate_ends.labels(setting).set(end.timestamp())
        left = (end - now).total_seconds() / _DAY
        if left < SOON:
            what = "a certificate has expired" if left <= 0 else "a certificate ends soon"
            hint = "lark setup … --renew, or the site's authority; then restart the controller"
            log.event(
                what, level=log.ERROR if left <= 0 else log.WARNING, setting=setting, file=path,
                end=end.strftime("%Y-%m-%d %H:%M UTC"), hint=hint,
            )  # fmt: skip
