"""The ends of the controller's certificates are in its metrics, and those that are near in its log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lark_controller import settings
from lark_controller.api.metrics import Metrics
from lark_controller.rest import certificate_ends
from lark_controller.rest.joins.certificates import new_authority, new_key, text

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def write(path: Path, *days: int) -> Path:
    made = (new_authority("a", new_key(), NOW, each).certificate for each in days)
    path.write_bytes(b"".join(map(text, made)))
    return path


def test_of_a_chain_the_first_end_counts_and_of_authorities_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nonsense.pem").write_text("no certificate")
    chosen = settings.Settings(
        rest_tls_cert=write(tmp_path / "rest.pem", 10, 900), rest_tls_ca=write(tmp_path / "ca.pem", 40, 800),
        openflow_tls_cert=tmp_path / "nonsense.pem", openflow_tls_ca=tmp_path / "none.pem",
    )  # fmt: skip
    metrics = Metrics()
    certificate_ends.note(chosen, metrics, NOW)
    shown = {
        line.split('"')[1]: float(line.split()[-1])
        for line in metrics.render().decode().splitlines()
        if line.startswith("lark_certificate_end_timestamp_seconds{")
    }
    assert shown == {
        "LARK_REST_TLS_CERT": (NOW + timedelta(days=10)).timestamp(),
        "LARK_REST_TLS_CA": (NOW + timedelta(days=800)).timestamp(),
    }
    (said,) = caplog.records
    assert said.getMessage() == "a certificate ends soon"
    assert "2027-01-11 00:00 UTC" in str(said.__dict__)
    assert "rest.pem" in str(said.__dict__)
    certificate_ends.note(chosen, metrics, NOW + timedelta(days=11))
    assert "a certificate has expired" in [record.getMessage() for record in caplog.records]
