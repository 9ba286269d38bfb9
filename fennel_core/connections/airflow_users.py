"""What users of Airflow may do: their roles by workspace, from FENNEL_AIRFLOW_WORKSPACES.

Airflow decides who may see and trigger DAGs; its users have no token of ours. The setting gives
them the roles of tokens (`roles`): `alice:*=admin,bob:shop+market=query`. A workspace without a
role means `commit`. If the setting is empty, every user whom Airflow lets trigger a DAG may do
everything, as before there were roles. If it is set, users who are not listed may do nothing.

    users = AirflowUsers.parse(settings.airflow_workspaces)
    users.require("bob", "shop", Permission.DEFINE)    # raises AirflowUserRefused
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from fennel_core.connections.api_errors import AirflowUserRefused
from fennel_core.connections.audit_events import Action, audited_command
from fennel_core.connections.roles import PERMISSIONS, Permission, Role
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId

EVERY_WORKSPACE: Final = "*"
UNNAMED_ROLE: Final = Role.COMMIT


@dataclass(frozen=True, slots=True)
class AirflowUsers:
    """`roles` by user and workspace, or `*`; None: without limits."""

    roles: Mapping[str, Mapping[str, Role]] | None

    @classmethod
    def parse(cls, setting: str) -> Self:
        """Return what a setting says, whose form the settings have checked."""
        if not setting:
            return cls(None)
        return cls({user: dict(map(_role, listed.split("+"))) for user, listed in _users(setting)})

    def role_in(self, user: str, workspace: str) -> Role | None:
        """Return the role of a user in a workspace, None without one."""
        assert self.roles is not None, "without limits there are no roles"
        listed = self.roles.get(user, {})
        return listed.get(workspace, listed.get(EVERY_WORKSPACE))

    def readable(self, user: str) -> list[str] | None:
        """Return the workspaces whose commits a user may see; None: all."""
        if self.roles is None:
            return None
        listed = self.roles.get(user, {})
        seen = [name for name, role in listed.items() if Permission.READ in PERMISSIONS[role]]
        return None if EVERY_WORKSPACE in seen else seen

    def require(self, user: str, workspace: str, permission: Permission) -> None:
        """Raise AirflowUserRefused unless the user has a role with the permission."""
        if self.roles is None:
            return
        role = self.role_in(user, workspace)
        if role is None or permission not in PERMISSIONS[role]:
            valid = [each for each in _of_a_workspace() if permission in PERMISSIONS[each]]
            raise AirflowUserRefused(user, workspace, role, valid)


def permit(
    settings: Settings,
    user: str,
    workspaces: Collection[str],
    permission: Permission,
    action: Action,
    subject: str,
) -> None:
    """Raise AirflowUserRefused unless a user has the permission in all of the workspaces.

    A refusal is audited; what is allowed is audited by the action itself.
    """
    users = AirflowUsers.parse(settings.airflow_workspaces)
    dsn = settings.postgres_dsn.get_secret_value()
    for workspace in sorted(workspaces):
        try:
            users.require(user, workspace, permission)
        except AirflowUserRefused:
            with audited_command(dsn, actor_of(user), action, subject, WorkspaceId(workspace)):
                raise


def actor_of(user: str) -> str:
    """Return the actor of a user of Airflow in the audit log."""
    return f"user {user} of Airflow"


def _users(setting: str) -> list[list[str]]:
    return [entry.split(":", 1) for entry in setting.split(",")]


def _role(listed: str) -> tuple[str, Role]:
    workspace, _, role = listed.partition("=")
    return workspace, Role(role) if role else UNNAMED_ROLE


def _of_a_workspace() -> list[Role]:
    return [role for role in Role if role is not Role.OPERATOR]
