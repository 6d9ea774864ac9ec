"""Users who prove by a MUNGE credential who they are: :class:`MungeUsers`. They may what the scope ``self`` lets."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lark_common import munge
from lark_common.errors import BusyError
from lark_common.limits import Places
from lark_common.turns import Elsewhere
from lark_controller.rest.identities.identities import RefusedTokenError
from lark_controller.rest.tokens import Scope, Token, is_user

# Requests whose credentials are looked at together: each is a process, and whoever sends one is a stranger still.
_TOGETHER: Final = 4


class MungeUsers:
    """Users by the word of this host's munged, and of its table of accounts. Thread-safe."""

    def __init__(self, socket: Path, verify: Callable[[str, str], munge.Shown] = munge.verify) -> None:
        self._socket = str(socket)
        self._verify = verify
        self._places = Places(_TOGETHER)

    def token(self, credential: str, words: str) -> Token:
        """The rights of whoever made the credential, for the request with these words. Raises RefusedTokenError, and
        BusyError where too many are looked at already."""
        with self._places.place() as free:
            if not free:
                raise BusyError("too many MUNGE credentials are looked at; ask again")
            # Two processes' work, which the time of this thread does not show: whoever asks pays for all of it.
            spent = Elsewhere(time.monotonic)
            try:
                shown = spent.measured(lambda: self._verify(credential, self._socket))
            except munge.MungeError as error:
                raise RefusedTokenError(str(error)) from None
            finally:
                spent.charge()
        if shown.payload.strip() != words:
            raise RefusedTokenError("it was made for another request: METHOD PATH SHA256-OF-THE-BODY is to be in it")
        try:
            user = pwd.getpwuid(shown.uid).pw_name
        except (KeyError, OverflowError):
            raise RefusedTokenError("its user has no account on the controller's host") from None
        if not is_user(user):
            raise RefusedTokenError("its user's name is none that an Owner has")
        return Token(name=f"{user} by MUNGE", sha256="", scopes=frozenset({Scope.SELF}), user=user)


def credential_in(header: str) -> str | None:
    """The MUNGE credential in an Authorization header; None where there is none."""
    scheme, _, credential = header.partition(" ")
    return credential.strip() or None if scheme.upper() == munge.SCHEME else None
