"""One name has one meaning: no public class name is used in two packages."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.tidy.tree import Source, product

SHARED: dict[str, str] = {}
"""Name → why two packages may use it."""

GENERIC_MODULES = {"flow", "decide", "watch", "progress", "steps", "facts", "few", "state"}
"""Module names that mean nothing in an import statement."""


def public_classes(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Name of a public class or type alias → the packages that define it."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        package = source.package or source.path.parts[0]
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(package)
    return found


def shared_names(sources: Iterable[Source]) -> list[str]:
    return sorted(
        f"{name}: {', '.join(sorted(packages))}"
        for name, packages in public_classes(sources).items()
        if len(packages) > 1 and name not in SHARED
    )


def test_no_public_class_name_is_used_in_two_packages() -> None:
    assert shared_names(product()) == []


def test_every_shared_name_is_still_shared() -> None:
    found = public_classes(product())
    assert [name for name in SHARED if len(found.get(name, ())) < 2] == []


def test_a_shared_name_is_found() -> None:
    text = "class Lane: pass\n"
    sources = [
        Source(Path(f"fennel_core/{package}/x.py"), text, ast.parse(text))
        for package in ("engine", "ingest")
    ]
    assert shared_names(sources) == ["Lane: engine, ingest"]


def test_no_module_has_a_name_that_needs_its_folder_to_be_understood() -> None:
    vague = [s.name for s in product() if s.path.stem in GENERIC_MODULES]
    assert vague == []
