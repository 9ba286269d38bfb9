"""Which objects of a bucket a source of files reads, and in which order.

The client splits a path into a static *prefix* and a pattern, the *suffix*. Parts of the pattern:

    *          one part of a key, whatever it is
    **         any number of parts
    *.csv      a last part with this ending
    date=%Y-%m-%d    a part that strftime writes so; its time orders the files
    orders     itself

A pattern that does not end with a wildcard names a file, or a folder with all that is in it. A path
without any wildcard arrives as a prefix: `orders` names `orders2/x.csv`, too, `orders/` does not.

What begins with `_` or `.` below the prefix is left out, as Spark and Hive do: markers and
unfinished uploads of their writers (`_SUCCESS`, `_temporary/…`). So are empty objects whose key
ends with a slash, which consoles show as folders.

Example: prefix `orders/`, pattern `date=%Y-%m-%d/*.csv` reads `orders/date=2024-02-29/1.csv`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final

from fennel_core.graph.errors import GraphError
from fennel_core.vocab.ids import Micros

HIDDEN: Final = ("_", ".")
DIRECTIVES: Final = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"\d{1,2}",
    "d": r"\d{1,2}",
    "H": r"\d{1,2}",
    "I": r"\d{1,2}",
    "M": r"\d{1,2}",
    "S": r"\d{1,2}",
    "j": r"\d{1,3}",
    "f": r"\d{1,6}",
    "p": r"[AaPp][Mm]",
    "b": r"[A-Za-z]+",
    "B": r"[A-Za-z]+",
    "a": r"[A-Za-z]+",
    "A": r"[A-Za-z]+",
}
"""What each directive of strftime writes, as a pattern; `strptime` reads it."""
HOUR_US: Final = 3_600_000_000
PERIODS: Final = (
    (frozenset("Yy"), 366 * 24 * HOUR_US),
    (frozenset("mbB"), 31 * 24 * HOUR_US),
    (frozenset("d"), 24 * HOUR_US),
    (frozenset("H"), HOUR_US),
    (frozenset("M"), HOUR_US // 60),
    (frozenset("S"), HOUR_US // 3_600),
)
"""How long the times last that directives name, from the longest on."""
_DIRECTIVE: Final = re.compile(r"%(.)")


class UnknownDirective(GraphError):
    """A part of a path has a directive of strftime that is not read back."""

    code: ClassVar[str] = "path-directive"


@dataclass(frozen=True, slots=True)
class PathWindow:
    """The times from which rows are taken; None: without a limit on that side."""

    since_us: int | None = None
    until_us: int | None = None

    def meets(self, first_us: int, end_us: int) -> bool:
        """Return whether rows from `first_us` on and before `end_us` may be in the window."""
        after = self.until_us is not None and first_us > self.until_us
        return not after and (self.since_us is None or end_us > self.since_us)


ALWAYS: Final = PathWindow()


@dataclass(frozen=True, slots=True)
class FilePath:
    """The objects under `prefix` whose rest of the key matches `pattern`."""

    prefix: str
    pattern: re.Pattern[str] | None
    formats: tuple[str, ...]
    """The parts that strftime writes, joined by spaces in `time_us`."""
    window: PathWindow = ALWAYS

    def matches(self, key: str) -> bool:
        """Return whether the object is read."""
        rest = key.removeprefix(self.prefix)
        if key.endswith("/") or not key.startswith(self.prefix):
            return False
        parts = rest.split("/")
        # A prefix without a slash at its end may end in the middle of a name.
        names = parts[1:] if self.prefix and not self.prefix.endswith("/") else parts
        if any(name.startswith(HIDDEN) for name in names):
            return False
        return self.pattern is None or self.pattern.fullmatch(rest) is not None

    def may_have_rows(self, key: str) -> bool:
        """Return whether the time that the key names lets it have rows of the window."""
        at, period_us = self.time_us(key), self.period_us
        return at is None or period_us is None or self.window.meets(at, at + period_us)

    @property
    def period_us(self) -> int | None:
        """How long the time lasts that a key names: a day if it names one; None without a year.

        What is below a part that is missing says nothing, as the hour of an unknown day.
        """
        found = {each for form in self.formats for each in _DIRECTIVE.findall(form)}
        if "j" in found:  # the day of the year
            found |= {"m", "d"}
        period_us = None
        for directives, us in PERIODS:
            if not found & directives:
                break
            period_us = us
        return period_us

    def time_us(self, key: str) -> Micros | None:
        """Return the time that the key of a matching object names; None without one."""
        found = (
            None if self.pattern is None else self.pattern.fullmatch(key.removeprefix(self.prefix))
        )
        if found is None or not self.formats:
            return None
        texts = [found.group(f"t{place}") for place in range(len(self.formats))]
        try:
            at = _parsed(" ".join(texts), " ".join(self.formats))
        except ValueError:
            return None  # as the 30th of February: the file is read, with those without a time
        return Micros(int(at.timestamp() * 1_000_000))


def file_path(prefix: str, suffix: str) -> FilePath:
    """Return the path of a connector. Raises `UnknownDirective`."""
    if not suffix:
        return FilePath(prefix, None, ())
    parts = suffix.split("/")
    texts: list[str] = []
    formats: list[str] = []
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part == "**":
            # Any number of parts, each with its slash; at the end at least the file.
            texts.append(".+" if last else "(?:[^/]+/)*")
            continue
        if "%" in part:
            text = f"(?P<t{len(formats)}>{_strftime(part)})"
            formats.append(part)
        else:
            text = "[^/]+".join(re.escape(each) for each in part.split("*"))
        if last:
            texts.append(text if "*" in part else f"{text}(?:/.+)?")
        else:
            texts.append(text + "/")
    return FilePath(prefix, re.compile("".join(texts)), tuple(formats) if _is_time(formats) else ())


def _is_time(formats: list[str]) -> bool:
    """Return whether the parts make one time: not if a directive is there twice."""
    form = " ".join(formats)
    try:
        _parsed(datetime(2000, 12, 31, tzinfo=UTC).strftime(form), form)
    except (ValueError, re.error):
        return False
    return True


def _parsed(text: str, form: str) -> datetime:
    return datetime.strptime(f"{text} +0000", f"{form} %z")


def _strftime(part: str) -> str:
    """Return a pattern for what strftime writes."""
    text, at = "", 0
    for found in _DIRECTIVE.finditer(part):
        directive = found.group(1)
        known = "%" if directive == "%" else DIRECTIVES.get(directive)
        if known is None:
            raise UnknownDirective(
                f"`%{directive}` in `{part}` is not read; use "
                + ", ".join(f"%{each}" for each in DIRECTIVES)
            )
        text += re.escape(part[at : found.start()]) + known
        at = found.end()
    return text + re.escape(part[at:])
