"""Failures of snapshots, rebuilds and drills.

`SnapshotsError` is the root. S3, Postgres or a slot being unreachable is not one of these: that is
`connections.errors.SystemUnavailable`.
"""

from __future__ import annotations

from typing import ClassVar


class SnapshotsError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "snapshots-failed"


class ManifestMalformed(SnapshotsError):
    """The bytes are not a manifest, or one of a format that this version cannot read.

    Use another snapshot, or run the version that wrote this one.
    """

    code = "manifest-malformed"


class SnapshotCorrupt(SnapshotsError):
    """An object of the snapshot is missing, has other content, or has another format.

    Restore from another snapshot.
    """

    code = "snapshot-corrupt"


class SnapshotPassFailed(SnapshotsError):
    """Some states could not be copied; the text lists them with the reasons.

    Run the pass again: copies of the other states were kept.
    """

    code = "snapshot-pass-failed"


class RebuildFailed(SnapshotsError):
    """Some job partitions were not rebuilt; the text lists them with the reasons.

    Remove the reason (often a parked job) and start the recovery again.
    """

    code = "rebuild-failed"


class DrillFailed(SnapshotsError):
    """Some job partitions could not be rebuilt as they are; the text lists them with both hashes.

    Rebuild them from an older snapshot, then drill them again.
    """

    code = "drill-failed"


class DrillNotRun(SnapshotsError):
    """Some drills could not be carried out, which says nothing about the states; run them again."""

    code = "drill-not-run"
