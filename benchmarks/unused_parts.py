"""Parts of a query server that benchmarks do not exercise: erasures, secrets and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.roles import Access, Role
from fennel_core.vocab.ids import WorkspaceId

ACCESS = Access(WorkspaceId("bench"), Role.ADMIN, "benchmark")


def nothing_hidden(_of: ErasableKeys, _keys: Sequence[bytes]) -> Sequence[int]:
    return ()


class NothingErased:
    """The erasures of an installation without any."""

    async def announce(self, workspace: WorkspaceId) -> None:  # noqa: ARG002  # there are none
        return

    def is_behind(self, workspace: WorkspaceId) -> bool:  # noqa: ARG002  # there are none
        return False

    async def catch_up(self, workspace: WorkspaceId) -> None:  # noqa: ARG002  # there are none
        return


async def no_secret(_workspace: WorkspaceId, _version: str, _name: str) -> str | None:
    return None


async def any_token(_authorization: str | None) -> Access:
    return ACCESS
