"""Log one `ledger step` line per asset, with the action, the asset and the duration.

A line is written after the action and its bookkeeping have both succeeded, never before, so that
the log does not report an action that a transaction rolled back. Topics are created and deleted in
batches: every line of a batch carries the duration of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from fennel_core.bank.store import Asset, AssetSummary
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId

log = logger(__name__)


class AssetAction(StrEnum):
    """What happened to an asset.

    A job is registered by T2 and stopped by its engines; every other asset is a topic, which is
    created and destroyed.
    """

    CREATE = "create"
    REGISTER = "register"
    STOP = "stop"
    DESTROY = "destroy"


def log_steps(
    action: AssetAction,
    assets: Iterable[Asset | AssetSummary],
    seconds: float,
    failures: Mapping[AssetId, str] | None = None,
) -> None:
    """Log one line per asset; an asset in `failures` is logged as failed, with the reason."""
    for asset in assets:
        title = asset.blueprint.title if isinstance(asset, Asset) else asset.title
        reason = (failures or {}).get(asset.id)
        fields = {
            "action": str(action),
            "kind": str(asset.key.kind),
            "title": title,
            "ms": round(seconds * 1000, 1),
            "asset": asset.id,
        }
        if reason is None:
            log.info("ledger step", **fields)
        else:
            log.warning("ledger step failed", **fields, reason=reason)
