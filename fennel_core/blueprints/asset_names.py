"""Physical names of assets: workspace, kind, identity and incarnation.

A name is never used twice, so a deleted asset cannot be mistaken for a later one of its identity.
"""

from __future__ import annotations

from typing import Final

from fennel_core.blueprints.logical import AssetKey, AssetKind
from fennel_core.vocab.ids import AssetId, Identity, TopicName, WorkspaceId

_PARTS: Final = 3
"""Kind, identity and incarnation, behind the workspace."""


def asset_id(workspace: WorkspaceId, key: AssetKey, incarnation: int) -> AssetId:
    """Return the physical name of an asset.

    It has at most 63 + 1 + 9 + 1 + 32 + 1 + 19 = 126 characters; Kafka allows 249.
    """
    return AssetId(f"{workspace}.{key.kind}.{key.identity}.{incarnation}")


def incarnation_of(id_: AssetId) -> int:
    """Return the incarnation in a physical name."""
    return int(id_.rpartition(".")[2])


def key_of(name: AssetId | TopicName) -> AssetKey:
    """Return the kind and the identity in a physical name."""
    _, kind, identity, _ = name.rsplit(".", 3)
    return AssetKey(AssetKind(kind), Identity(identity))


def is_asset_name(name: str) -> bool:
    """Return whether a topic of this name may be an asset of some installation."""
    _, *parts = name.rsplit(".", 3)
    return (
        len(parts) == _PARTS and parts[0] in AssetKind._value2member_map_ and parts[2].isdecimal()
    )
