"""The files of the operator's pages: what is served, with which headers, and that they need no more than that."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from lark_controller.rest.resources.pages import POLICY, read
from tests.fixtures.rest_app import Api, make_api

ASSETS = read(resources.files("lark_controller.rest") / "assets")
SCRIPTS = sorted(name for name in ASSETS if name.endswith(".js"))


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


@pytest.mark.parametrize("name", ["", *sorted(ASSETS)])
def test_every_file_is_served_to_anybody_with_the_pages_headers(api: Api, name: str) -> None:
    answer = api.client.get(f"/pages/{name}")
    asset = ASSETS[name or "index.html"]
    assert (answer.status_code, answer.data, answer.content_type) == (200, asset.data, asset.kind)
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-cache"
    again = api.client.get(f"/pages/{name}", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_the_root_leads_to_the_pages_also_behind_a_proxy(api: Api) -> None:
    answer = api.client.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "pages/")


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "..", "../pages.py", "%2e%2e/pages.py", "views", "views/", "/etc/passwd", "views/../../app.py"],
)
def test_nothing_else_is_served(api: Api, path: str) -> None:
    answer = api.client.get(f"/pages/{path}")
    assert answer.status_code in (404, 308)
    assert b"def " not in answer.data


def test_the_policy_allows_no_inline_script_or_style_and_nothing_from_elsewhere() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert rules["require-trusted-types-for"] == "'script'"
    assert not re.search(r"unsafe|http|\*|data:|blob:", POLICY)


def test_the_page_itself_holds_no_script_style_or_address_of_elsewhere() -> None:
    html = ASSETS["index.html"].data.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?:", html)
    assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL) == [""]
    named = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert named
    assert set(named) <= set(ASSETS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_only_what_is_there_and_make_no_markup_from_text(name: str) -> None:
    text = ASSETS[name].data.decode()
    folder = Path(name).parent
    for target in re.findall(r'^import .*?"([^"]+)";', text, re.MULTILINE | re.DOTALL):
        assert target.startswith("."), target
        parts: list[str] = []
        for part in (folder / target).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        assert "/".join(parts) in ASSETS, target
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|localStorage", text
    )
    assert not re.search(r'"style"|\.cssText', text)
    assert re.findall(r"https?://[^\s\"]+", text) in ([], ["http://www.w3.org/2000/svg"])
    assert len(text.splitlines()) <= 300


def test_every_colour_of_the_light_page_has_one_for_the_dark() -> None:
    css = ASSETS["style.css"].data.decode()
    light, dark = (
        dict(re.findall(r"(--[\w-]+): (#\w+);", block))
        for block in (
            css.split("@media (prefers-color-scheme: dark)")[0],
            css.split("prefers-color-scheme: dark")[1][:1200],
        )
    )
    assert light.keys() == dark.keys()
    assert not re.search(r"url\(|@import", css)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stands_out_from_its_ground(scheme: int) -> None:
    """WCAG 2.2 asks for 4.5:1 for text."""
    css = ASSETS["style.css"].data.decode()
    colours = dict(
        re.findall(r"(--[\w-]+): (#\w{6});", css.split("@media (prefers-color-scheme: dark)")[scheme][:1400])
    )

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(colours[one]), luminance(colours[other])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for ground in ("--page", "--panel", "--faint"):
        for text in ("--text", "--soft", "--accent", "--good", "--poor", "--bad"):
            assert contrast(text, ground) >= 4.5, (text, ground)
    for kind in ("good", "bad"):
        assert contrast(f"--{kind}", f"--{kind}-back") >= 4.5
    assert contrast("--on-accent", "--accent") >= 4.5
