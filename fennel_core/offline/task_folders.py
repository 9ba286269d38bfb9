"""Folders of tasks on the disk of their host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
"""Where Spark keeps files of the application, in the environment of its Python workers."""


@contextmanager
def task_folder(purpose: str) -> Iterator[Path]:
    """Yield an empty folder, and delete it afterwards.

    A task that is killed leaves it; it is among the files that Spark deletes with the application.
    """
    spark = os.environ.get(SPARK_FOLDERS, "").split(",")[0]
    with TemporaryDirectory(prefix=f"fennel-{purpose}-", dir=spark or None) as name:
        yield Path(name)
