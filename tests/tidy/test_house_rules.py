"""House rules that no linter checks. Each exception is listed with its reason."""

import ast
import re

import pytest

from tests.tidy.tree import (
    CODE_FOLDERS,
    PURE_PACKAGES,
    ROOT,
    Source,
    imported_modules,
    product,
    sources,
)

LINES_OF_A_FUNCTION = 70
LINES_OF_A_FILE = 600
COLUMNS_OF_A_LINE = 100
PRAGMA = re.compile(r"\s*# (type: ignore|noqa|fmt:).*$")
WIDE_FILES = {"tests/unit/ledger/test_lifecycle.py": "a table of states and events"}
LINES_OF_A_DAG_FILE = 20

LONG_FUNCTIONS: dict[str, str] = {}
"""`path::function` → reason."""
LONG_FILES: dict[str, str] = {}
"""path → reason."""

TOOLS_IN_PURE_PACKAGES = {
    "fennel_core/wire/generate.py": "a developer runs it to make wire/gen; nothing imports it"
}

FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|common|helpers?|misc|manager)(_|$)")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:work|root|home/[a-z]\w*|Users/[a-z]\w*|mnt|farm)/")
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".cfg",
    ".ini",
    ".sh",
    ".yml",
    ".yaml",
    ".json",
    ".xml",
    ".sql",
    ".proto",
    ".in",
    ".txt",
    ".lock",
}
IMPURE_MODULES = {
    *(
        "asyncio",
        "threading",
        "multiprocessing",
        "concurrent",
        "subprocess",
        "socket",
        "ssl",
        "selectors",
        "signal",
        "http",
        "urllib",
    ),
    *("random", "secrets", "uuid", "time", "os", "shutil", "tempfile", "sqlite3", "logging"),
    *(
        "psycopg",
        "confluent_kafka",
        "boto3",
        "botocore",
        "rocksdict",
        "pyspark",
        "airflow",
        "aiohttp",
        "requests",
        "httpx",
    ),
    *("fastapi", "starlette", "uvicorn", "pydantic_settings", "structlog", "prometheus_client"),
}
CLOCK_CALLS = {"now", "utcnow", "today"}


def functions(source: Source) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_the_tree_is_found() -> None:
    assert len(product()) > 5
    assert any(s.name == "tests/tidy/test_house_rules.py" for s in sources())


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{s.name}::{f.name} has {lines_of(f)} lines"
        for s in sources()
        for f in functions(s)
        if lines_of(f) > LINES_OF_A_FUNCTION and f"{s.name}::{f.name}" not in LONG_FUNCTIONS
    ]
    assert long == []


def too_wide(text: str) -> list[int]:
    """Return the numbers of lines over the limit. Reasons of ignored findings do not count."""
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(PRAGMA.sub("", line)) > COLUMNS_OF_A_LINE
    ]


def test_no_line_is_wider_than_its_limit() -> None:
    wide = [f"{s.name}:{number}" for s in sources() for number in too_wide(s.text)]
    assert [place for place in wide if place.partition(":")[0] not in WIDE_FILES] == []


def test_a_line_that_is_too_wide_is_found() -> None:
    assert too_wide("short\n" + "x" * 101 + "\n" + "y" * 90 + "  # noqa: S101  # a reason") == [2]


def test_no_file_is_longer_than_its_limit() -> None:
    long = {
        s.name: n
        for s in sources()
        if (n := s.text.count("\n")) > LINES_OF_A_FILE and s.name not in LONG_FILES
    }
    assert long == {}


def test_no_module_has_a_generic_name() -> None:
    vague = [
        s.name
        for s in sources()
        for part in s.path.with_suffix("").parts
        if FORBIDDEN_NAMES.search(part)
    ]
    assert vague == []


def test_every_module_has_a_docstring() -> None:
    silent = [s.name for s in product() if s.tree.body and ast.get_docstring(s.tree) is None]
    assert silent == []


def test_nothing_prints_outside_the_apps() -> None:
    """A print outside the apps needs the same `noqa` with a reason that ruff needs."""
    printing = [
        f"{s.name}:{node.lineno}"
        for s in product()
        if s.package != "apps"
        for node in ast.walk(s.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        if "noqa: T201" not in s.text.splitlines()[node.lineno - 1]
    ]
    assert printing == []


def test_nothing_is_left_unfinished() -> None:
    unfinished = [
        f"{s.name}:{i}"
        for s in sources()
        for i, line in enumerate(s.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert unfinished == []


def test_every_ignored_finding_has_a_reason() -> None:
    bare = re.compile(
        r"#\s*(type:\s*ignore(\[[\w, -]+\])?|noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?)\s*$"
    )
    unexplained = [
        f"{s.name}:{i}"
        for s in sources()
        for i, line in enumerate(s.text.splitlines(), 1)
        if bare.search(line)
    ]
    assert unexplained == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    top = [p for p in ROOT.iterdir() if p.is_file()]
    folders = [
        p
        for f in (*CODE_FOLDERS, "docs", "requirements", ".ci")
        if (ROOT / f).is_dir()
        for p in (ROOT / f).rglob("*")
    ]
    named = []
    for path in [*top, *folders]:
        if (
            path.is_file()
            and "__pycache__" not in path.parts
            and (path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "run", ".importlinter"})
        ):
            named += [
                f"{path.relative_to(ROOT)}:{i}"
                for i, line in enumerate(path.read_text().splitlines(), 1)
                if MACHINE_PATHS.search(line)
            ]
    assert named == []


def test_lock_files_name_no_index() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert len(locks) == 4
    assert [p.name for p in locks if re.search(r"(?m)^-|https?://", p.read_text())] == []


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_pure_packages_do_no_io(package: str) -> None:
    impure = []
    for source in (
        s for s in product() if s.package == package and s.name not in TOOLS_IN_PURE_PACKAGES
    ):
        impure += [
            f"{source.name} imports {m}"
            for m in imported_modules(source.tree)
            if m.split(".")[0] in IMPURE_MODULES
        ]
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in {"open", "input"}:
                impure.append(f"{source.name}:{node.lineno} opens a file")
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in CLOCK_CALLS
                and "date" in ast.unparse(node.func.value).lower()
            ):
                impure.append(f"{source.name}:{node.lineno} reads the clock")
    assert sorted(set(impure)) == []


def test_dag_files_are_short_and_import_nothing_heavy() -> None:
    for source in (s for s in product() if s.path.parts[0] == "dags"):
        assert source.text.count("\n") <= LINES_OF_A_DAG_FILE, (
            f"{source.name} is longer than {LINES_OF_A_DAG_FILE} lines: move logic "
            "to plugins/fennel_airflow"
        )
        heavy = {
            m
            for m in imported_modules(source.tree)
            if m.split(".")[0] not in {"airflow", "fennel_airflow", "__future__", "datetime"}
        }
        assert heavy == set(), f"{source.name} imports {heavy} at its top: every task pays for it"


def test_a_broad_except_states_its_reason() -> None:
    broad = []
    for source in product():
        lines = source.text.splitlines()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            ):
                reraises = any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node))
                reason = " ".join(lines[node.lineno - 2 : node.lineno])
                if not reraises and not re.search(r"last line|[Oo]utermost|BLE001", reason):
                    broad.append(f"{source.name}:{node.lineno}")
    assert broad == []
