"""User code as it travels: text and the name to call.

`generated_code` after `imports` is a whole module whose `entry_point` is called. `core_code` is the
bare function as its author wrote it and `includes` the code it was declared to need: these two, not
the generated wrapper, say whether the logic changed (`fennel_core.wire.canonical_logic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RefKind(Enum):
    DATASET = "dataset"
    FEATURESET = "featureset"


@dataclass(frozen=True, slots=True)
class PyCode:
    entry_point: str
    source_code: str
    core_code: str
    generated_code: str
    imports: str
    includes: tuple[PyCode, ...]
    ref_includes: tuple[tuple[str, RefKind], ...]
    """Names of datasets and featuresets the code mentions, sorted; only extractors have them."""

    @property
    def module_text(self) -> str:
        """The text to execute as one module before `entry_point` is called."""
        return f"{self.imports}\n{self.generated_code}"
