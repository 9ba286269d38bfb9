"""The options of a read of a dataset: `spark.read.format("fennel").option("dataset", …)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from fennel_core.dataframes import read_options
from fennel_core.dataframes.contents import ALWAYS
from fennel_core.dataframes.parts import PART_ROWS
from fennel_core.history.errors import ReadFailed
from fennel_core.vocab.ids import MAIN_BRANCH, DatasetName, Micros

OPTIONS: Final = (
    *("dataset", "url", "token", "workspace", "branch", "mode", "as_of", "columns"),
    *("partition_rows", "env_file"),
)


class Mode(StrEnum):
    """Which rows a read returns."""

    AS_OF = "as_of"
    """The dataset as of a time: what a lookup at that time finds."""
    LATEST = "latest"
    """The dataset over all rows, also those with a time in the future."""
    CHANGELOG = "changelog"
    """Every version that was added or retracted."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The parsed options of a read.

    `url`: the address of the API to read through; None: from the stores themselves. `columns`:
    those to read, in order; empty: all. `part_rows`: about how many versions a partition
    of the DataFrame is computed from.
    """

    dataset: DatasetName
    branch: str
    workspace: str | None
    token: str | None
    mode: Mode
    as_of: Micros
    columns: tuple[str, ...]
    part_rows: int
    url: str | None = None


def parse_options(options: Mapping[str, str], now: datetime) -> ReadRequest:
    """Return the parsed options; ReadFailed if one is unknown, malformed or has no effect.

    `now`: the default of `as_of`.
    """
    read_options.check_known(options, OPTIONS)
    if not options.get("dataset"):
        raise ReadFailed(
            'no dataset: add .option("dataset", "<name>"), or .option("query_log", "<workflow>") '
            "[read-option]"
        )
    read_options.check_access(options)
    mode = _mode(options)
    return ReadRequest(
        DatasetName(options["dataset"]),
        options.get("branch") or MAIN_BRANCH,
        options.get("workspace") or None,
        options.get("token") or None,
        mode,
        read_options.moment(options, "as_of", now) if mode is Mode.AS_OF else ALWAYS,
        _columns(options),
        _part_rows(options),
        options.get("url") or None,
    )


def _mode(options: Mapping[str, str]) -> Mode:
    text = options.get("mode", Mode.AS_OF)
    if text not in set(Mode):
        raise ReadFailed(f"unknown mode `{text}`; valid modes: {', '.join(Mode)} [read-option]")
    mode = Mode(text)
    if mode is not Mode.AS_OF and "as_of" in options:
        raise ReadFailed(
            f"`as_of` has no effect in mode `{mode}`; omit one of the two, or filter the DataFrame "
            "by its timestamp [read-option]"
        )
    return mode


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in options:
        return ()
    found = tuple(name.strip() for name in options["columns"].split(","))
    if not all(found) or len(set(found)) < len(found):
        raise ReadFailed(
            f"columns `{options['columns']}` is not a list of different names; use a form like "
            '"user,city" [read-columns]'
        )
    return found


def _part_rows(options: Mapping[str, str]) -> int:
    text = options.get("partition_rows", str(PART_ROWS))
    if not text.isdecimal() or int(text) < 1:
        raise ReadFailed(
            f'partition_rows `{text}` is not a number of rows; use a form like "{PART_ROWS}" '
            "[read-option]"
        )
    return int(text)
