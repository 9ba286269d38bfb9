"""A finding of validation, as passes yield it and as an error reports it to the client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule: a stable code, the entity at fault, and a sentence that says what to do.

    `code` never changes its meaning; `entity` is the full name (`Dataset`, `Dataset.pipeline`,
    `Featureset.feature`).
    """

    code: str
    entity: str
    text: str
