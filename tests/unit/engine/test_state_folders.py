"""Folders of local state: names, locks that end with their process, and what may be deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fennel_core.engine.state_folders import StateFolders, hold
from fennel_core.hangar.store import HangarInUse
from fennel_core.vocab.ids import Epoch, JobId, PartitionIndex

PLACE = (JobId("w.job.abc.1"), PartitionIndex(1))
HOLDER = """
import sys, time
from pathlib import Path
from fennel_core.engine.state_folders import hold
held = hold(Path(sys.argv[1]))
print("held" if held else "refused", flush=True)
time.sleep(600)
"""


@contextmanager
def process_that_holds(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A frozen process that holds a folder."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # a program of this test, and no shell
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            os.kill(process.pid, signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def left(folders: StateFolders, *epochs: int) -> None:
    """Leave states of earlier owners; each holds a file with its epoch."""
    for epoch in map(Epoch, epochs):
        held = folders.create(PLACE, epoch)
        (held.path / "by").write_text(str(epoch))
        held.release()


def taken(folders: StateFolders, epoch: int) -> str | None:
    """Return which owner's state an owner takes over."""
    held = folders.take_over(PLACE, Epoch(epoch))
    if held is None:
        return None
    assert held.path == folders.state(PLACE, Epoch(epoch))
    held.release()
    return (held.path / "by").read_text()


def test_a_new_owner_takes_the_newest_state_of_earlier_owners(tmp_path: Path) -> None:
    folders = StateFolders(tmp_path)
    assert taken(folders, 1) is None
    left(folders, 2, 9, 10, 12)
    left(StateFolders(tmp_path / "other"), 11)
    assert taken(folders, 11) == "10", "by number, and never of a later owner"
    assert taken(folders, 11) == "10", "it is its own now"
    assert not folders.state(PLACE, Epoch(10)).exists(), "an earlier owner does not find it again"


def test_a_state_that_a_frozen_process_holds_is_passed_over_until_that_process_ends(
    tmp_path: Path,
) -> None:
    folders = StateFolders(tmp_path)
    left(folders, 2, 3)
    with process_that_holds(folders.state(PLACE, Epoch(3))) as frozen:
        assert taken(folders, 4) == "2"
        frozen.kill()
        frozen.wait()
    assert taken(folders, 5) == "2"
    assert folders.superseded({PLACE: Epoch(5)}) == [folders.state(PLACE, Epoch(3))]


def test_an_owner_does_not_go_back_to_earlier_state_while_its_own_is_still_closing(
    tmp_path: Path,
) -> None:
    folders = StateFolders(tmp_path)
    left(folders, 2, 3)
    closing = hold(folders.state(PLACE, Epoch(3)))
    assert closing is not None
    with pytest.raises(HangarInUse, match=r"state-1-3 of w\.job\.abc\.1 is still being closed"):
        folders.take_over(PLACE, Epoch(3))
    closing.release()
    assert taken(folders, 3) == "3"


def test_a_folder_that_is_renamed_while_it_is_being_held_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state-1-2"
    folder.mkdir()
    opened = os.open

    def rename_after(path: Path, flags: int) -> int:
        found = opened(path, flags)
        folder.rename(tmp_path / "state-1-3")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", rename_after)
        assert hold(folder) is None
    again = hold(tmp_path / "state-1-3")
    assert again is not None, "no lock was left"


def test_superseded_state_is_deleted_when_no_process_holds_it(tmp_path: Path) -> None:
    folders = StateFolders(tmp_path)
    left(folders, 2, 3, 4, 5)
    (tmp_path / PLACE[0] / "deleted-1-1").mkdir()
    (tmp_path / PLACE[0] / "state-1-notes").mkdir()
    two, three = folders.state(PLACE, Epoch(2)), folders.state(PLACE, Epoch(3))
    found = folders.superseded({PLACE: Epoch(4)})
    assert found == [tmp_path / PLACE[0] / "deleted-1-1", two, three], "what a crash left, too"
    with process_that_holds(three):
        assert [folders.delete_free(each) for each in found] == [True, True, False]
    assert folders.superseded({PLACE: Epoch(4)}) == [three]
    assert folders.delete_free(three)
    assert not folders.delete_free(three), "it is gone"
    assert taken(folders, 4) == "4"
