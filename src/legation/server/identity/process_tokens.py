"""Tokens that live as long as the process: the one of `--token`, and the one that the CLI finds in `server.json`.

They are in no table, and only their hashes are in memory. They act in the name of the first workspace's owner.
"""

from __future__ import annotations

from typing import Final

from legation.secret import Secret
from legation.store.identity.bootstrap import Installed
from legation.store.identity.credential import CredentialHash, new_token
from legation.store.keys import Keys
from legation.wire.principal import SCOPES, Principal

NAME: Final = "server"  # what the audit log calls them


class ProcessTokens:
    def __init__(self, keys: Keys, installed: Installed) -> None:
        self._hashes = CredentialHash(keys.pepper)
        self._known: set[bytes] = set()
        self.principal: Final = Principal(
            kind="process",
            id=NAME,
            workspace=installed.workspace,
            scopes=SCOPES,
            level=2,
            user=installed.user,
        )  # also for what the process does by itself

    def add(self, token: Secret | None = None) -> Secret:
        """The token itself; a new one if none is given."""
        token = token or new_token()
        self._known.add(self._hashes.token(token.reveal()))
        return token

    def find(self, hash: bytes) -> Principal | None:  # noqa: A002
        return self.principal if hash in self._known else None
