"""What users and maintainers read is plain technical English.

The test knows pronouns and fixed phrases; the rest of the house style is review.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.tidy.tree import ROOT, product

PRONOUNS = re.compile(
    r"\b(some|any|every)(body|one)\b|\bno(body| one)\b|\bwho(m)?ever\b", re.IGNORECASE
)
"""Impersonal pronouns: name the caller, the slot, the operator or the process instead."""

PHRASES = re.compile(
    r"\b("
    r"(is|are|be|was|were|been) told|tell(s|ing)?|told"
    r"|comes? to (the|a|an|other|its|nothing|what)|goes with (it|them|him)"
    r"|stands? (at|on|in|for|above|below)"
    r"|anew|meanwhile|wholly|shall|hereby"
    r"|is no [A-Z`]\w*|of (his|her|their|our) own making|whose turn|never a no-op"
    r"|in-memory twin|the twin|rooms?|the door|at rest here"
    r")\b"
)
"""Phrases of the old idiom, with the field's word for each in `docs/…` and `GLOSSARY.md`."""

_HOST = "fennel_core/apps/local/host_environment.py"
ALLOWED: dict[str, str] = {
    f'{_HOST}: for name in ("postgres", "daemon", "nobody"):': "a user of the system",
    f'{_HOST}: "`daemon` or `nobody`. Run as an ordinary user."': "a user of the system",
}
"""`path: text of the line, stripped` → why the line may keep its wording."""


def documents() -> list[Path]:
    top = list(ROOT.glob("*.md"))
    folders = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "fennel_core" / "connections" / "migrations").glob("*.sql"),
        *(ROOT / "plugins").rglob("*.html"),
        *(ROOT / "fennel_core" / "apps").rglob("*.sh"),
    ]
    return [*top, ROOT / "Makefile", ROOT / "docker-compose.yml", *folders]


def lines() -> Iterable[tuple[str, int, str]]:
    for source in product():
        for number, line in enumerate(source.text.splitlines(), 1):
            yield source.name, number, line
    for path in documents():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield path.relative_to(ROOT).as_posix(), number, line


def found(pattern: re.Pattern[str], where: Iterable[tuple[str, int, str]]) -> list[str]:
    return [
        f"{name}:{number}: {match.group(0)}"
        for name, number, line in where
        if (match := pattern.search(line)) and f"{name}: {line.strip()}" not in ALLOWED
    ]


def test_no_impersonal_pronouns() -> None:
    assert found(PRONOUNS, lines()) == []


def test_no_phrase_of_the_old_idiom() -> None:
    assert found(PHRASES, lines()) == []


def test_every_allowed_line_still_exists() -> None:
    present = {f"{name}: {line.strip()}" for name, _, line in lines()}
    assert [key for key in ALLOWED if key not in present] == []


def test_a_pronoun_and_a_phrase_are_found() -> None:
    text = [("x.md", 1, "Nobody reads it."), ("x.md", 2, "The caller is told so.")]
    assert found(PRONOUNS, text) == ["x.md:1: Nobody"]
    assert found(PHRASES, text) == ["x.md:2: is told"]
