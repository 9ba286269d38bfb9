"""The reference pages are complete: every route is in docs/api.md, every code in operations.md."""

import ast
import re
from collections.abc import Iterator
from typing import cast

from fastapi.routing import APIRoute
from starlette.routing import Route

from fennel_core.dataframes.routes import router
from fennel_core.definition import server as definition_server
from fennel_core.definition.server import ServerState
from fennel_core.ingest import server as ingest_server
from fennel_core.offline.parts import ROUTERS
from fennel_core.redrive.routes import router as redrive_router
from fennel_core.sinks.routes import router as sinks_router
from fennel_core.sources.routes import router as sources_router
from fennel_core.telemetry import errors
from fennel_core.telemetry.health import PATHS, HealthEndpoint
from tests.tidy.tree import ROOT, Source, product

METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")
API_PAGE = ROOT / "docs" / "api.md"
OPERATIONS_PAGE = ROOT / "docs" / "operations.md"
PASSED_THROUGH = {
    "PlansError": "a query that cannot be planned carries the plan's code",
    "CallFailed": "user code fails a request with the executor's code",
}
"""Roots of exceptions whose code becomes the code of an API error, and why."""
COMPUTED = {
    "http-error": "`telemetry.errors` for a status without a code of its own",
    "definitions-invalid": "`definition.validation` for problems of several kinds",
}
"""Codes that are not literals of an `ApiError` call, and where they are."""


# --- routes ---------------------------------------------------------------------------------------


def normal(method: str, path: str) -> str:
    """Return the route as the page writes it: a parameter without its type."""
    return f"{method} {path.replace(':path}', '}')}"


def definition_routes() -> Iterator[str]:
    """Return the routes of the FastAPI application; its state is not used before a request."""
    app = definition_server.application(
        cast(ServerState, object()),
        HealthEndpoint("test", {}),
        (*ROUTERS, router, sources_router, sinks_router, redrive_router),
    )
    for route in app.routes:
        if isinstance(route, APIRoute | Route) and "oauth2" not in route.path:
            for method in (route.methods or set()) & set(METHODS):
                yield normal(method, route.path)


def ingest_routes() -> Iterator[str]:
    """Return the two paths that the raw ASGI application of ingest compares with."""
    yield normal("POST", ingest_server.LOG_PATH)
    yield normal("POST", re.sub(r"\([^)]*\)", "{name}", ingest_server.ERASE_PATH.pattern))


def query_routes() -> Iterator[str]:
    """Return the paths in the syntax tree of the raw ASGI application of query."""
    (source,) = [s for s in product() if s.name == "fennel_core/query/server.py"]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.MatchSequence):
            words = [
                pattern.value.value
                if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant)
                else "{name}"
                for pattern in node.patterns
            ]
            if words[0] in METHODS:
                yield normal(str(words[0]), "/api/v1/" + "/".join(map(str, words[1:])))
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            found = re.fullmatch(
                r"path == f?'(?:\{API\})?(/[\w/]+)' and method == '(\w+)'", ast.unparse(node)
            )
            if found:
                api = "{API}" in ast.unparse(node)
                yield normal(found[2], ("/api/v1" if api else "") + found[1])


def documented_routes() -> set[str]:
    """Return the first cell of each row that starts with a method."""
    page = API_PAGE.read_text()
    return set(re.findall(rf"^\| `((?:{'|'.join(METHODS)}) [^?`]+)(?:\?[^`]*)?` \|", page, re.M))


def test_every_route_is_documented_and_every_documented_route_exists() -> None:
    routes = {*definition_routes(), *ingest_routes(), *query_routes()}
    routes |= {normal("GET", path) for path in PATHS}
    assert len(set(query_routes())) >= 5, "the dispatch of the query server was not understood"
    assert sorted(routes - documented_routes()) == [], "add a row to docs/api.md"
    assert sorted(documented_routes() - routes) == [], "no server has these: delete the rows"


# --- error codes ----------------------------------------------------------------------------------


def test_the_openapi_description_has_every_route() -> None:
    app = definition_server.application(
        cast(ServerState, object()),
        HealthEndpoint("test", {}),
        (*ROUTERS, router, sources_router, sinks_router, redrive_router),
    )
    described = {
        normal(method.upper(), path)
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    }
    about_itself = {"GET /api/v1/docs", "GET /api/v1/openapi.json"}
    assert described == documented_routes() - about_itself


def derived_from(*roots: str) -> set[str]:
    """Return the names of these classes and of all that derive from them."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for source in product()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    names = set(roots)
    while more := {name for name, of in bases.items() if of & names} - names:
        names |= more
    return names


def constant(node: ast.expr | None) -> str | None:
    found = node.value if isinstance(node, ast.Constant) else None
    return found if isinstance(found, str) else None


def is_raised(node: ast.ClassDef) -> bool:
    """Return whether a class is raised: the root of a package is not."""
    return "ClassifiedApiError" not in {ast.unparse(base) for base in node.bases}


def class_codes(node: ast.ClassDef) -> Iterator[str]:
    """Return codes that a class body assigns to `code` or `CODE`."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            target, value = ast.unparse(statement.targets[0]), constant(statement.value)
        elif isinstance(statement, ast.AnnAssign):
            target, value = ast.unparse(statement.target), constant(statement.value)
        else:
            continue
        if target.lower() == "code" and value is not None:
            yield value


def called_codes(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Return codes in calls of `ApiError(status, code, …)`, subclasses and `super().__init__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > 1:
            callee = ast.unparse(node.func).rpartition(".")[2]
            status = node.args[0]
            number = isinstance(status, ast.Constant) and isinstance(status.value, int)
            if callee in names or (callee == "__init__" and number):
                code = constant(node.args[1])
                if code is not None and re.fullmatch(r"[a-z][a-z0-9-]+", code):
                    yield code


def problem_codes(source: Source) -> Iterator[str]:
    """Return codes of validation problems: `Problem(code=…)` or `Problem("code", …)`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and "problem" in ast.unparse(node.func).lower():
            for value in [*node.args[:1], *(k.value for k in node.keywords if k.arg == "code")]:
                code = constant(value)
                if code is not None and re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+|[a-z]+", code):
                    yield code


def api_codes() -> set[str]:
    names, passed = derived_from("ApiError"), derived_from(*PASSED_THROUGH)
    codes = {*COMPUTED, *errors._BY_STATUS.values()}
    for source in product():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and is_raised(node) and node.name in names | passed:
                codes.update(class_codes(node))
        codes.update(called_codes(source.tree, names))
        codes.update(problem_codes(source))
    return codes


def documented_codes() -> set[str]:
    """Return the first cells of the rows between the headings `API errors` and `Parked jobs`."""
    page = OPERATIONS_PAGE.read_text()
    section = page[page.index("## API errors") : page.index("## Parked jobs")]
    return set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.M))


def test_every_error_code_is_documented_and_every_documented_code_exists() -> None:
    codes = api_codes()
    assert len(codes) > 50, "the codes were not found in the source"
    assert sorted(codes - documented_codes()) == [], "add a row to docs/operations.md"
    assert sorted(documented_codes() - codes) == [], "no code has these: delete or rename the rows"


# --- parked jobs ----------------------------------------------------------------------------------


def test_every_documented_parked_reason_is_an_exception_class() -> None:
    page = OPERATIONS_PAGE.read_text()
    documented = re.findall(r"^\| `(\w+)` \|", page[page.index("## Parked jobs") :], re.M)
    classes = {
        node.name
        for source in product()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    assert len(documented) > 5
    assert set(documented) <= classes
