"""The files that the house rules apply to, read once."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("fennel_core", "plugins", "dags", "tests", "benchmarks", "examples")
GENERATED = ROOT / "fennel_core" / "wire" / "gen"
PURE_PACKAGES = (
    "vocab",
    "wire",
    "expressions",
    "aggregates",
    "expectations",
    "graph",
    "operators",
    "blueprints",
    "plans",
    "schedule",
)


@dataclass(frozen=True, slots=True)
class Source:
    """One hand-written Python file: its path from the root, text and syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.as_posix()

    @property
    def package(self) -> str | None:
        """The package: `hangar` for fennel_core/hangar/x.py; None outside the packages."""
        parts = self.path.parts
        return parts[1] if parts[0] == "fennel_core" and len(parts) > 2 else None


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "__pycache__" in path.parts or GENERATED in path.parents:
                continue
            text = path.read_text()
            found.append(Source(path.relative_to(ROOT), text, ast.parse(text, filename=str(path))))
    return tuple(found)


def product() -> tuple[Source, ...]:
    """Return the shipped files: not tests, benchmarks or examples."""
    return tuple(s for s in sources() if s.path.parts[0] in {"fennel_core", "plugins", "dags"})


def imported_modules(tree: ast.AST) -> frozenset[str]:
    """Return the dotted names that a syntax tree imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)
