"""Roles: what a token may do.

A token has one role. `query` and `log` are disjoint, because a program that only writes rows has no
reason to read any. `commit` includes both: user code of a commit reads and writes every row of its
workspace anyway. `admin` adds what cannot be undone and what opens other doors: erasing keys,
secrets, tokens and the audit log of the workspace. `operator` is the role of the installation: it
creates workspaces and their tokens and sees the state of all of them, but opens no workspace
itself.

    access.workspace_for(Permission.READ)    # the workspace, or RoleInsufficient
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fennel_core.connections.api_errors import NotAdministrator, RoleInsufficient
from fennel_core.vocab.ids import WorkspaceId


class Permission(StrEnum):
    """A kind of call."""

    READ = "read"
    """Queries, lookups, rows, and descriptions of what a branch defines."""
    WRITE = "write"
    """Send rows to an endpoint."""
    DEFINE = "define"
    """Commit, create and delete branches; order about sources, and replay dead letters."""
    ADMINISTER = "administer"
    """Erase keys, rewind sources, drop dead letters; secrets, tokens and the audit log."""
    OPERATE = "operate"
    """Workspaces, their tokens, and the state of the whole installation."""


class Role(StrEnum):
    """The role of a token."""

    QUERY = "query"
    LOG = "log"
    COMMIT = "commit"
    ADMIN = "admin"
    OPERATOR = "operator"


_WORK: Final = frozenset({Permission.READ, Permission.WRITE, Permission.DEFINE})
PERMISSIONS: Final[Mapping[Role, frozenset[Permission]]] = MappingProxyType(
    {
        Role.QUERY: frozenset({Permission.READ}),
        Role.LOG: frozenset({Permission.WRITE}),
        Role.COMMIT: _WORK,
        Role.ADMIN: _WORK | {Permission.ADMINISTER},
        Role.OPERATOR: frozenset({Permission.OPERATE}),
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """What a token opens. `workspace` is None for the role `operator` only.

    `actor`: who uses it, for the audit log. `digest`: of the token's row; None without one.
    `expires_s`: seconds since 1970, None for never.
    """

    workspace: WorkspaceId | None
    role: Role
    actor: str
    digest: bytes | None = None
    expires_s: float | None = None
    is_read_token: bool = False

    def may(self, *permissions: Permission) -> bool:
        """Return whether the role has one of these permissions."""
        return not PERMISSIONS[self.role].isdisjoint(permissions)

    def workspace_for(self, *permissions: Permission) -> WorkspaceId:
        """Return the workspace for a call that needs one of these permissions.

        Raises RoleInsufficient.
        """
        if self.workspace is None or not self.may(*permissions):
            valid = [r for r in Role if not PERMISSIONS[r].isdisjoint(permissions)]
            raise RoleInsufficient(self.actor, self.role, valid)
        return self.workspace

    def require_operator(self) -> None:
        """Raise NotAdministrator unless the role is `operator`."""
        if not self.may(Permission.OPERATE):
            raise NotAdministrator()
