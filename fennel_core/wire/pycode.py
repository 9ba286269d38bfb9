"""User code in a commit: its text and the name to call.

`generated_code` after `imports` is a complete module whose `entry_point` is called. `core_code` is
the bare function as its author wrote it, `includes` the code that it declares as a dependency.
These two, not the generated wrapper, determine whether the logic changed (`wire.code_logic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RefKind(Enum):
    DATASET = "dataset"
    FEATURESET = "featureset"


@dataclass(frozen=True, slots=True)
class PyCode:
    """One piece of user code with the code it includes."""

    entry_point: str
    source_code: str
    core_code: str
    generated_code: str
    imports: str
    includes: tuple[PyCode, ...]
    ref_includes: tuple[tuple[str, RefKind], ...]
    """Datasets and featuresets that the code mentions, sorted; set for extractors only."""

    @property
    def module_text(self) -> str:
        """Return the text to execute as one module before `entry_point` is called."""
        return f"{self.imports}\n{self.generated_code}"
