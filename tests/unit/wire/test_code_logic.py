"""The digest of user code: what changes it, and that the version of Python does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fennel_core.wire import code_logic
from fennel_core.wire.code_logic import code_digest
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.pycode import PyCode

TESTS = Path(__file__).resolve().parents[2]
GOLDEN = TESTS / "golden" / "stored" / "code.txt"
PLAIN = "def f(df):\n    return df['a'] + 1"


@pytest.mark.parametrize(
    "text",
    [
        "def f(df):\n    # a comment\n    return df['a'] + 1  # another\n",
        'def f(df):\n    """Say why."""\n\n    return df["a"] + 1',
        "    def f(df):\n        return (df['a']\n            + 1)",
        "def f(\n  df,\n):\n  return (\n    df[\n      'a'\n    ]\n    + 1\n  )",
        "def f(df): return df['a'] + 1;",
        "def f(df):\n    return df[\\\n 'a'] + 0x1",
        "@meta(owner='me')\n@extractor(deps=[D], version=7)\n@inputs('a')\n" + PLAIN,
    ],
)
def test_comments_layout_docstrings_and_client_decorators_are_not_logic(text: str) -> None:
    assert code_digest(text) == code_digest(PLAIN)


@pytest.mark.parametrize(
    "text",
    [
        "def f(df):\n    return df['a'] + 2",
        "def f(df):\n    return df['a'] + 1.0",
        "def f(df):\n    return df['a'] + True",
        "def f(df):\n    return df[b'a'] + 1",
        "def f(df):\n    return df['a'] - 1",
        "def f(df):\n    return 1 + df['a']",
        "def f(rows):\n    return rows['a'] + 1",
        "def f(*df):\n    return df['a'] + 1",
        "def f(df=None):\n    return df['a'] + 1",
        "def g(df):\n    return df['a'] + 1",
        "async def f(df):\n    return df['a'] + 1",
        "@cache\ndef f(df):\n    return df['a'] + 1",
        "def f(df):\n    pass",
        "def f(df):\n    return",
        "def f(df):\n    return None",
        "def f(df):\n    return f'{df}'",
        "def f(df):\n    return f'{df!r}'",
        "def f(df):\n    return f'{df:>4}'",
        "def f(df):\n    return f'{df=}'",
    ],
)
def test_other_code_has_another_digest(text: str) -> None:
    assert code_digest(text) != code_digest(PLAIN)


def test_every_example_of_this_file_has_a_digest_of_its_own() -> None:
    digests = [code_digest(text) for text in EXAMPLES.values()]
    assert len(set(digests)) == len(EXAMPLES)


def test_a_renamed_local_variable_is_a_change() -> None:
    one = code_digest("def f(df):\n    a = 1\n    return locals()")
    assert code_digest("def f(df):\n    b = 1\n    return locals()") != one


def test_nesting_is_logic() -> None:
    inside = "def f(df):\n    if x:\n        y()\n        return df\n"
    assert code_digest("def f(df):\n    if x:\n        y()\n    return df\n") != code_digest(inside)


def test_a_function_of_only_a_docstring_is_an_empty_function() -> None:
    assert code_digest('def f():\n    """Nothing."""') == code_digest("def f():\n    pass")


def test_a_lambda_is_compared_by_its_syntax_tree() -> None:
    assert code_digest("lambda df:  df['a']>1") == code_digest('lambda df: df["a"] > 1  # big')
    assert code_digest("lambda df: df['a'] > 1") != code_digest("lambda df: df['a'] > 2")


def test_text_that_is_not_python_is_compared_without_layout() -> None:
    assert code_digest("lambda df: (\n   1") == code_digest("lambda df: (\n1\n")
    assert code_digest("lambda df: (\n   1") != code_digest("lambda df: (\n   2")


# --- every Python ---------------------------------------------------------------------------------

EXAMPLES = {
    "function": PLAIN,
    "lambda": "lambda df, *rest, key=None, **more: (df, rest, key, more)",
    "cut lambda": "lambda df: df['a']  # cut out of its line)",
    "strings": "x = 'a' \"b\" r'\\d' b'\\xff' if 0 else '\\N{EM DASH}\\u00e9\\U0001f600\\ud800'",
    "invalid escape": "x = '\\d'",
    "f-strings": "x = f'{a!r:>{w}}{b=}{c:%Y-%m}{{}}' f'{d:}{e[\"k\"]}{h:{i}{j}}' rf'\\d{g}' ''",
    "numbers": "x = [0x10, 0b1, 1_000, 1e300, 1e-7, .1, 1j, 10**400, 1e999]",
    "constants": "x = [None, True, False, ..., '', b'', 0, -0.0]",
    "displays": "x = [(), (1,), [], {}, {1}, {**a, 'b': 1}, [*a], {k: v for k, v in a if k}]",
    "slices": "x = a[1:2, ::3, ..., b], a[()], a[1,], a[*b] if False else a[1:]",
    "operators": "x = not a or b and c < d <= e is not f in g not in h ** -i @ j // k << l | ~n",
    "walrus": "if (n := len(a)) > 1: print(n)",
    "comprehensions": "x = [y for y in z if y for w in y], (y async for y in z)",
    "assignments": "a = b = c, *d = e\na += 1\na: int = 1\na: int\ndel a, b[0], c.d",
    "control": (
        "for i in a:\n  if i: continue\n  else: break\nelse:\n  pass\n"
        "while a:\n  pass\n"
        "try:\n  a\nexcept (E, F) as e:\n  raise X from e\nelse:\n  b\nfinally:\n  c\n"
        "with a as b, c:\n  assert a, 'text'\n"
    ),
    "match": (
        "match a:\n  case {'k': [1, *rest], **more} if rest: b\n  case Point(x=0) | None: c\n"
        "  case str() as s: d\n  case _: e\n"
    ),
    "functions": (
        "async def f(a, /, b: int = 1, *c, d, e=2, **g) -> int:\n"
        "  '''Doc.'''\n  global h\n  async with x: await y\n  yield 1\n"
        "  def inner():\n    nonlocal a\n    return (yield from z)\n  return\n"
    ),
    "class": (
        "@d(1)\nclass A(B, metaclass=M):\n  '''Doc.'''\n"
        "  x: int = 1\n  def f(self): return super().f()"
    ),
    "imports": "from . import a\nfrom ..b import c as d\nimport e.f as g, h\nfrom i import *",
    "type comments": "def f(a):\n  # type: (int) -> int\n  x = []  # type: List[int]\n  return x",
    "names": "ünïcödé = Ünïcödé.ａｂ",
    "long expression": " + ".join(["x"] * 800),
    "not python": "lambda df: (\n   1",
}


def recorded_code() -> Iterator[tuple[str, str]]:
    """Yield the user code of every recorded commit, with a name."""

    def pieces(code: PyCode) -> Iterator[PyCode]:
        yield code
        for include in code.includes:
            yield from pieces(include)

    for path in sorted((TESTS / "golden" / "wire").glob("*.binpb")):
        request = decode_sync_request(path.read_bytes())
        code = [
            *(pipeline.pycode for pipeline in request.pipelines),
            *(
                value
                for operator in request.operators
                for value in vars_of(operator.kind)
                if isinstance(value, PyCode)
            ),
            *(
                value
                for extractor in request.extractors
                for value in vars_of(extractor.kind)
                if isinstance(value, PyCode)
            ),
        ]
        for number, piece in enumerate(p for one in code for p in pieces(one)):
            yield f"{path.stem} {number}", piece.core_code


def vars_of(value: object) -> list[object]:
    return [getattr(value, name) for name in getattr(type(value), "__slots__", ())]


TEXTS = {**EXAMPLES, **dict(recorded_code())}


def test_no_digest_of_user_code_changes() -> None:
    written = "".join(f"{name}: {code_digest(text)}\n" for name, text in TEXTS.items())
    if os.environ.get("REFRESH_GOLDEN"):
        GOLDEN.write_text(written)
    assert len(TEXTS) > len(EXAMPLES) + 20, "the recorded commits have user code"
    assert written == GOLDEN.read_text(), (
        "the form of user code changed, so assets would be renamed; raise NORMALIZER if you mean it"
    )


def other_pythons() -> list[Path]:
    """Return the interpreters of supported versions (3.11 and later) that are installed."""
    found = [Path(p) for v in range(11, 20) if (p := shutil.which(f"python3.{v}"))]
    found += sorted((Path.home() / ".pyenv" / "versions").glob("3.1[1-9]*/bin/python"))
    return [python for python in dict.fromkeys(found) if runs(python)]


def runs(python: Path) -> bool:
    """Return whether the file is a working interpreter; version managers leave stubs that fail."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603  # a program of this test, and no shell


def test_every_python_that_is_installed_computes_the_same_digests() -> None:
    program = (
        "import json, runpy, sys\n"
        "digest = runpy.run_path(sys.argv[1])['code_digest']\n"
        "texts = json.load(sys.stdin)\n"
        "print(json.dumps([sys.version_info[:2], [digest(t) for t in texts]]))\n"
    )
    results = {}
    for python in other_pythons():
        done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [python, "-I", "-c", program, code_logic.__file__],
            input=json.dumps(list(TEXTS.values())),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        version, digests = json.loads(done.stdout)
        results[tuple(version)] = digests
    if len(results) < 2:
        pytest.skip(f"other versions of Python are needed to compare; found {sorted(results)}")
    here = [code_digest(text) for text in TEXTS.values()]
    for version, digests in results.items():
        wrong = [n for n, a, b in zip(TEXTS, here, digests, strict=True) if a != b]
        assert not wrong, f"Python {version} computes other digests of: {wrong}"
