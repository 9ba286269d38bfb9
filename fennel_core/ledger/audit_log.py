"""What the ledgers did, one log line per asset: `ledger step` with what was done, to what, and how
long that took.

Theory. A line is written after the deed and its bookkeeping are both true, never before, so that
nobody reads of a thing that a rolled-back transaction took away again. Topics are made and unmade
by one request for all of them: each line carries its whole time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from fennel_core.bank.store import Asset, Holding
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId

log = logger(__name__)


class AssetAction(StrEnum):
    """What happens to an asset. A job is registered by T2 and stopped by its engines; everything
    else is a topic.
    """

    CREATE = "create"
    REGISTER = "register"
    STOP = "stop"
    DESTROY = "destroy"


def log_steps(
    deed: AssetAction,
    things: Iterable[Asset | Holding],
    seconds: float,
    refused: Mapping[AssetId, str] | None = None,
) -> None:
    """One line for each of `things`; those in `refused` were not done, and the line says why."""
    for each in things:
        title = each.blueprint.title if isinstance(each, Asset) else each.title
        why = (refused or {}).get(each.id)
        said = {
            "action": str(deed),
            "kind": str(each.key.kind),
            "title": title,
            "ms": round(seconds * 1000, 1),
            "asset": each.id,
        }
        if why is None:
            log.info("ledger step", **said)
        else:
            log.warning("ledger step refused", **said, reason=why)
