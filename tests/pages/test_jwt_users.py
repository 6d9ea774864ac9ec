"""The operator's pages for those who come with a JWT, and for users who may see their own jobs alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from fake_switch.switch import FakeNetwork
from lark_controller.rest.tokens import Scope, add
from tests.fixtures.browser import VIEWS, Reader, Site
from tests.fixtures.issuers import AUDIENCE, ISSUER, key, public, token, write_issuers, write_keys

pytestmark = pytest.mark.browser


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A controller that accepts JWTs: of operators and readers by their groups, and of everybody for own jobs."""
    keys = write_keys(tmp_path / "keys.json", public(key(), "one"))
    issuers = write_issuers(
        tmp_path / "jwt.yaml",
        {
            "issuer": ISSUER, "audience": AUDIENCE, "keys": str(keys), "user": "preferred_username",
            "scopes": {"operate": {"groups": "operators"}, "read": {"groups": "readers"}, "self": "everyone"},
        },
    )  # fmt: skip
    with FakeNetwork() as network:
        made = Site(tmp_path, network, LARK_JWT_FILE=str(issuers))
        try:
            yield made
        finally:
            made.lark.stop()


@pytest.mark.parametrize("group", ["readers", "operators"])
def test_a_jwt_opens_every_view_and_no_link_is_dead(reader: Reader, site: Site, group: str) -> None:
    job = site.run("alice")
    site.run("bob")
    page = reader.log_in(token(groups=group))
    addresses = {f"#/{view}" for view in VIEWS} | {f"#/jobs/{job['id']}", "#/users/alice"}
    seen: set[str] = set()
    while addresses - seen:
        where = sorted(addresses - seen)[0]
        seen.add(where)
        reader.go(where)
        expect(page.locator("main h1")).to_be_visible()
        if not where.startswith("#/explain"):
            expect(page.locator(".fresh")).to_have_text("Live")
        assert page.get_by_role("heading", name="Not found").count() == 0, where
        if where in {f"#/{view}" for view in VIEWS}:
            found = page.eval_on_selector_all("main a[href]", "all => all.map((each) => each.getAttribute('href'))")
            addresses |= {each for each in found if each.startswith("#/")}
    assert len(seen) > len(VIEWS) + 2


@pytest.mark.parametrize("kind", ["JWT", "token"])
def test_a_user_with_own_jobs_alone_is_told_what_shows_them(reader: Reader, site: Site, kind: str) -> None:
    """The pages show all that is in the pool; nothing of it is asked for, and no view is linked."""
    secret = token() if kind == "JWT" else add(site.lark.directory / "tokens.yaml", "mine", [Scope.SELF], user="alice")
    job = site.run("alice")
    page = reader.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/v1/" in request.url else None)
    for where in ("#/", f"#/jobs/{job['id']}"):
        reader.go(where)
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("allows only: self. These pages need read or operate.")
        expect(page.get_by_role("alert")).to_contain_text('Your own jobs: "lark jobs" and "lark explain" show them')
        assert page.get_by_role("navigation").count() == 0
        assert page.evaluate("sessionStorage.length") == 0
    assert {each.rpartition("/v1/")[2] for each in asked} == {"token"}


def test_a_jwt_that_ends_ends_the_log_in_with_the_reason(reader: Reader, site: Site) -> None:
    """It counts for another minute, for clocks that differ."""
    reader.expected = ("401",)
    page = reader.log_in(token(groups="readers", exp=int(time.time()) - 52))
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("The token is not accepted: it has expired.")
