"""The commands about policies."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from lark_controller.cli import main as cli
from tests.fixtures.rest_app import Api


def test_plan_and_policy(served: Api, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(policy)]) == cli.OK
    told = capsys.readouterr().out
    assert told.splitlines() == [
        "1 of 2 jobs would be treated otherwise:",
        "  1 job of 1 user (7.0 of bob): no WAN any more",
        "flows on 1 switch would change: 1 new, 0 changed, 2 gone",
        "More with --jobs and --flows.",
    ]
    assert cli.main(["plan", str(policy), "--jobs", "--flows"]) == cli.OK
    told = capsys.readouterr().out
    assert "\njob 7.0 (bob): no WAN any more\n" in told
    assert "More with" not in told
    assert "+1 ~0 -2, then 9 of 4096 flows\n  + table=3 …\n  - table=4 …\n  … and 1 more\n" in told
    assert cli.main(["policy", "put", str(policy)]) == cli.OK
    assert capsys.readouterr().out == "version 2 is in force\n"
    assert cli.main(["policy", "show"]) == cli.OK
    # The text alone, since it is edited and put again.
    shown = capsys.readouterr()
    assert shown.out == policy.read_text()
    assert shown.err.startswith("# version 2, put in force at ")
    policy.write_text("blok: []\n")
    for command in (["policy", "put"], ["plan"]):
        assert cli.main([*command, str(policy)]) == cli.NO
        assert f"{policy}:2:3: blok: unknown key; accepted: block, slice" in capsys.readouterr().err
    assert served.controls.policy.version.version == 2


def test_policy_history(served: Api, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy.write_text("version: 1\npolicies: []\n")
    cli.main(["policy", "put", str(policy)])
    capsys.readouterr()
    assert cli.main(["policy", "history"]) == cli.OK
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head == ["VERSION", "IN", "FORCE", "FROM", "BY", "SHA-256"]
    assert [(row[0], row[2]) for row in rows] == [("2", "operate"), ("1", "start")]
    assert cli.main(["policy", "history", "--limit", "1"]) == cli.OK
    assert capsys.readouterr().out.splitlines()[2:] == ["… and older versions: --limit shows more"]
    assert cli.main(["policy", "history", "--limit", "1", "--json"]) == cli.OK
    assert [each["version"] for each in json.loads(capsys.readouterr().out)] == [2]
    assert cli.main(["policy", "show", "1"]) == cli.OK
    shown = capsys.readouterr()
    assert shown.out == "version: 1\n"
    assert shown.err.endswith("by start\n")
    assert cli.main(["policy", "diff", "1"]) == cli.OK
    told = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in told[:2]] == ["--- version 1", "+++ version 2"]
    assert told[2:] == ["@@ -1,1 +1,2 @@", " version: 1", "+policies: []"]
    assert cli.main(["policy", "diff", "2", "2"]) == cli.OK
    assert capsys.readouterr().out.endswith("The texts are equal.\n")
    assert cli.main(["policy", "back", "1", "--plan"]) == cli.OK
    assert "1 of 2 jobs would be treated otherwise" in capsys.readouterr().out
    assert served.controls.policy.version.version == 2
    assert cli.main(["policy", "back", "1"]) == cli.OK
    assert capsys.readouterr().out == "version 3 is in force, with the text of version 1\n"
    assert served.controls.policy.version.text == "version: 1\n"
    assert cli.main(["policy", "back", "9"]) == cli.NO
    assert "There is no version 9 of the policy." in capsys.readouterr().err


def test_check_needs_no_controller(
    policy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["check", str(policy)]) == cli.OK
    assert "no mistakes" in capsys.readouterr().out
    policy.write_text("version: 1\ntopology: {hosts: {default: {switch: rack2}}}\n")
    assert cli.main(["check", str(policy)]) == cli.OK
    assert "warning: topology.hosts.default has no capacity" in capsys.readouterr().out
    policy.write_text("version: 1\npolicies:\n  - blok: {}\nswitchs: {}\n")
    assert cli.main(["check", str(policy)]) == cli.NO
    assert len(capsys.readouterr().out.splitlines()) >= 2
    assert cli.main(["check", "--json", str(policy)]) == cli.NO
    found = json.loads(capsys.readouterr().out)
    assert found["valid"] is False
    assert {mistake["line"] for mistake in found["mistakes"]} >= {3, 4}
    monkeypatch.setattr(sys, "stdin", io.StringIO("version: 1\n"))
    assert cli.main(["check", "-"]) == cli.OK
    assert cli.main(["check", "/nowhere/policy.yaml"]) == cli.USAGE
    # No connection is broken by more than anybody takes.
    policy.write_text("# " + "x" * (1 << 20))
    assert cli.main(["policy", "put", str(policy)]) == cli.USAGE
    assert "is too large; at most 1048576 characters" in capsys.readouterr().err
