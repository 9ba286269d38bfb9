"""One root of exceptions per package, and a stable code on every class.

A package may have a second root: that of the errors which a client of the API sees. It derives from
`vocab.errors.ClassifiedApiError`, so that all API errors are one tree.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.tree import Source, product

BUILTIN = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception class: its full name, those of its bases, and whether it sets `code`."""

    name: str
    bases: tuple[str, ...]
    has_code: bool

    @property
    def package(self) -> str:
        return self.name.split(".")[1]

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


def module_of(source: Source) -> str:
    return ".".join(source.path.with_suffix("").parts)


def imported(tree: ast.Module) -> dict[str, str]:
    """Local name → full name, for `from module import name`."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def full_name(base: ast.expr, module: str, names: dict[str, str], local: set[str]) -> str:
    text = ast.unparse(base)
    head, _, tail = text.partition(".")
    if head in local:
        return f"{module}.{text}"
    if head in names:
        return f"{names[head]}.{tail}" if tail else names[head]
    return text


def sets_code(node: ast.ClassDef) -> bool:
    for statement in node.body:
        targets = (
            [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else statement.targets
            if isinstance(statement, ast.Assign)
            else []
        )
        if any(isinstance(t, ast.Name) and t.id in {"code", "CODE"} for t in targets):
            return True
    return False


def classes(sources: Iterable[Source]) -> Iterator[Raised]:
    """Every class of the packages, exceptions or not."""
    for source in sources:
        if source.package is None:
            continue
        module, names = module_of(source), imported(source.tree)
        local = {n.name for n in source.tree.body if isinstance(n, ast.ClassDef)}
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                bases = tuple(full_name(b, module, names, local) for b in node.bases)
                yield Raised(f"{module}.{node.name}", bases, sets_code(node))


def exceptions(sources: Iterable[Source]) -> dict[str, Raised]:
    """The classes that are exceptions, by full name."""
    every = {c.name: c for c in classes(sources)}

    def is_exception(name: str) -> bool:
        if name in BUILTIN:
            return True
        return name in every and any(is_exception(base) for base in every[name].bases)

    return {name: found for name, found in every.items() if is_exception(name)}


def roots(found: dict[str, Raised], package: str) -> list[str]:
    """The exceptions of a package that have no base in it."""
    inside = {name for name, raised in found.items() if raised.package == package}
    return sorted(name for name in inside if not inside & set(found[name].bases))


def is_api_error(found: dict[str, Raised], name: str) -> bool:
    return name == API_ROOT or any(is_api_error(found, b) for b in found[name].bases if b in found)


def names_package(name: str, package: str, api: bool) -> bool:
    """Whether a root is called after its package: `EngineError`, `AggregateError`, `QueryError`."""
    stem = name.removesuffix("Error").removesuffix("Api" if api else "").lower()
    return name.endswith("Error") and stem in {package, package.removesuffix("s")}


def broken_rules(found: dict[str, Raised]) -> list[str]:
    """Return the roots that are one too many, or not called after their package."""
    broken = []
    for package in sorted({raised.package for raised in found.values()} - {"vocab"}):
        for api in (False, True):
            of_kind = [n for n in roots(found, package) if is_api_error(found, n) is api]
            if len(of_kind) > 1:
                broken += [f"{package}: {name.rpartition('.')[2]}" for name in of_kind]
            elif of_kind and not names_package(of_kind[0].rpartition(".")[2], package, api):
                broken.append(f"{package}: {of_kind[0].rpartition('.')[2]}")
    return broken


API_ROOT = "fennel_core.vocab.errors.ApiError"


def test_every_package_has_one_root_of_exceptions() -> None:
    assert broken_rules(exceptions(product())) == []


def test_every_exception_has_a_stable_code() -> None:
    found = exceptions(product())

    def has_code(raised: Raised) -> bool:
        return raised.has_code or any(has_code(found[b]) for b in raised.bases if b in found)

    assert sorted(n for n, r in found.items() if not has_code(r) and n != API_ROOT) == []


def test_a_second_root_is_found() -> None:
    text = "class EngineError(Exception):\n    code = 'engine'\nclass Lost(Exception): pass\n"
    source = Source(Path("fennel_core/engine/x.py"), text, ast.parse(text))
    assert broken_rules(exceptions([source])) == ["engine: EngineError", "engine: Lost"]


def test_a_root_with_the_name_of_something_else_is_found() -> None:
    text = "class Lost(Exception): pass\n"
    source = Source(Path("fennel_core/engine/x.py"), text, ast.parse(text))
    assert broken_rules(exceptions([source])) == ["engine: Lost"]
