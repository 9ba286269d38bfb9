"""Keep forecasts for a while: a commit that waits for another plans itself again every moment."""

from __future__ import annotations

from typing import Final

from fennel_core.blueprints.logical import AssetKey
from fennel_core.blueprints.plan_entries import DeadLetterForecast
from fennel_core.vocab.ids import AssetId

VALID_S: Final = 120.0
"""Longer than a commit waits for another one of its branch."""
KEPT: Final = 256


class KnownForecasts:
    """Forecasts of source replays by raw topic and job. `now_s`: any clock that does not jump."""

    def __init__(self) -> None:
        self._known: dict[tuple[AssetId, AssetKey], tuple[float, DeadLetterForecast]] = {}

    def get(self, raw: AssetId, job: AssetKey, now_s: float) -> DeadLetterForecast | None:
        """Return the forecast if it is not too old."""
        made_s, forecast = self._known.get((raw, job), (float("-inf"), None))
        return forecast if now_s - made_s < VALID_S else None

    def put(self, raw: AssetId, job: AssetKey, forecast: DeadLetterForecast, now_s: float) -> None:
        """Keep a forecast, and forget the oldest one if there are too many."""
        self._known.pop((raw, job), None)
        self._known[raw, job] = (now_s, forecast)
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
