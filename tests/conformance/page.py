"""Render `docs/client_compatibility.md` from `features.toml` and `ratchet.txt`:
`python -m tests.conformance.page --write`.

A feature is shown by tests of the client's own suite that pass on the platform in every CI run, so
the page cannot promise more than CI checks.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.run import PACKAGE, RATCHET, listed

HERE = Path(__file__).parent
FEATURES = HERE / "features.toml"
PAGE = HERE.parents[1] / "docs" / "client_compatibility.md"
STATUS = {"works": "works", "ignored": "accepted, no effect", "missing": "not available"}

HEAD = """\
# Client compatibility

<!-- Generated from tests/conformance/features.toml: python -m tests.conformance.page --write -->

What of the public client (`fennel-ai` 1.5.80) works on this platform. *Tests* counts the tests of
the client's own suite that CI runs against the real platform for the feature ({total} in all);
features without such a test are covered by this project's own tests.
"""


@dataclass(frozen=True, slots=True)
class Feature:
    area: str
    name: str
    status: str
    note: str
    prefixes: tuple[str, ...]

    def tests(self, passing: list[str]) -> list[str]:
        """The tests of `passing` that show this feature."""
        return [test for test in passing if any(_covers(p, test) for p in self.prefixes)]


def _covers(prefix: str, test: str) -> bool:
    path = f"{PACKAGE}/{prefix}"
    return test == path or test.startswith(f"{path}::")


def features() -> Iterator[Feature]:
    for area in tomllib.loads(FEATURES.read_text())["area"]:
        for row in area["feature"]:
            yield Feature(
                area["name"],
                row["name"],
                STATUS[row["status"]],
                row.get("note", ""),
                tuple(row.get("tests", ())),
            )


def rendered() -> str:
    passing = listed(RATCHET)
    lines, area = [HEAD.format(total=len(passing)).rstrip("\n")], ""
    for feature in features():
        if feature.area != area:
            area = feature.area
            lines += [f"\n## {area}\n", "| feature | status | tests |", "|---|---|---|"]
        status = f"{feature.status}: {feature.note}" if feature.note else feature.status
        count = len(feature.tests(passing))
        lines.append(f"| {feature.name} | {status} | {count or '–'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page; default: print it")
    if parser.parse_args().write:
        PAGE.write_text(rendered())
    else:
        print(rendered())


if __name__ == "__main__":
    main()
