"""The last release: its pages, and its packages built from its tag."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures import own_network
from tests.install.pages import Page


@dataclass(frozen=True, slots=True)
class Release:
    """The files of a release, and the directory of its packages."""

    tree: Path
    packages: Path

    def page(self, page: Page) -> Page:
        """The page as the release has it."""
        return Page(page.name, page.names, self.tree / "docs" / "how-to")


def last_tag(checkout: Path) -> str | None:
    """The tag of the last release before the commit of ``checkout``; None before the first release."""
    asked = ["git", "-C", str(checkout), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def packages_of(checkout: Path, tag: str, distribution: str, folder: Path) -> Release:
    """Build the packages of a tag as its own files have it, in ``folder``."""
    copy = 'git -C "$1" archive "$2" | tar -C "$3" -xf -'
    subprocess.run(["bash", "-o", "pipefail", "-c", copy, "copy", checkout, tag, folder], check=True)
    done = own_network.run_outside(["env", "-C", str(folder), "make", "packages", f"DISTRIBUTIONS={distribution}"])
    assert done.returncode == 0, done.stdout
    return Release(folder, folder / "dist" / distribution)
