"""What validation finds: a stable code for programs, the entity at fault, and a sentence that says
what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`code` never changes its meaning; `entity` is the full name (`Dataset`, `Dataset.pipeline`,
    `Featureset.feature`).
    """

    code: str
    entity: str
    text: str
