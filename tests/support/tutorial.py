"""Reads docs/tutorial.md: its files and the output it shows."""

import re
from pathlib import Path

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILE_NAME = re.compile(r"(?:Create the file|Append to) `(\w+\.py)`")


def tutorial_files(page: str) -> dict[str, str]:
    """Return each file of the tutorial with the Python blocks that belong to it.

    A block belongs to the file that the text above it creates or appends to.
    """
    files: dict[str, str] = {}
    for found in FENCE.finditer(page):
        if found[1] == "python":
            name = FILE_NAME.findall(page[: found.start()])[-1]
            files[name] = files.get(name, "") + "\n" + found[2]
    return files


def printed_training_data(page: str) -> list[str]:
    """Return the lines of the table that train.py prints."""
    (table,) = [found[2] for found in FENCE.finditer(page) if found[2].startswith("+----+")]
    return table.splitlines()


def printed_features(page: str) -> list[list[str]]:
    """Return the words of each line of the table of features that the query prints."""
    return _tables_of_features(page)[0]


def printed_past(page: str) -> list[list[str]]:
    """Return the words of each line of the table that past.py prints."""
    return _tables_of_features(page)[1]


def _tables_of_features(page: str) -> list[list[list[str]]]:
    return [
        [line.split() for line in found[2].splitlines()]
        for found in FENCE.finditer(page)
        if found[2].lstrip().startswith("User.user_id")
    ]
