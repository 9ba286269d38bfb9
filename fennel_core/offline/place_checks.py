"""Check the buckets of a request before it is accepted, so that a wrong key is known at once.

The store is asked what the run will ask it: the list of files, the columns of the first one, and to
take an object in the folder of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from fennel_core.connections.errors import ObjectStoreUnavailable
from fennel_core.connections.secrets import Sealer
from fennel_core.offline.api_errors import OfflineQueryInvalid
from fennel_core.offline.buckets import Bucket
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.request_body import CODE, CheckedOfflineQuery
from fennel_core.offline.request_row import OfflineRequest
from fennel_core.offline.s3_files import InputInvalid, file_columns, list_files
from fennel_core.offline.s3_keys import seal, unseal
from fennel_core.offline.s3_output import Publication
from fennel_core.offline.s3_places import (
    INPUT,
    NO_KEYS,
    NO_PLACES,
    OUTPUT,
    PlaceKeys,
    PlaceRules,
    S3Source,
    missing_columns,
)
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.vocab.problems import Problem


class RequestPlaces(Protocol):
    """What the service needs to accept buckets of users."""

    @property
    def rules(self) -> PlaceRules:
        """What a request may name."""
        ...

    def check(self, asked: CheckedOfflineQuery, id_: str) -> None:
        """Raise `OfflineQueryInvalid` for buckets that cannot be used, and SystemUnavailable.

        It blocks.
        """
        ...

    def sealed(self, workspace: WorkspaceId, id_: str, keys: PlaceKeys) -> bytes:
        """Return the keys of a request, encrypted."""
        ...

    def withdraw(self, row: OfflineRequest, sealed: bytes | None) -> None:
        """Delete what is in the folder of the result of a request that has none; blocks.

        `sealed`: its keys. Raises `BucketRefused`, `SecretUnreadable` and SystemUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoPlaces:
    """Implement `RequestPlaces` where no bucket may be named."""

    rules: PlaceRules = NO_PLACES

    def check(self, asked: CheckedOfflineQuery, id_: str) -> None:
        """See `RequestPlaces.check`."""
        raise AssertionError(
            f"offline query `{id_}` names a bucket: {asked.source or asked.target}"
        )

    def sealed(self, workspace: WorkspaceId, id_: str, keys: PlaceKeys) -> bytes:
        """See `RequestPlaces.sealed`."""
        raise AssertionError(f"offline query `{id_}` of `{workspace}` has keys: {keys}")

    def withdraw(self, row: OfflineRequest, sealed: bytes | None) -> None:  # noqa: ARG002  # none are named
        """See `RequestPlaces.withdraw`."""
        raise AssertionError(f"offline query `{row.id}` names a bucket: {row.definition.target}")


NONE_ALLOWED: Final = NoPlaces()


@dataclass(frozen=True, slots=True)
class S3Places:
    """Implement `RequestPlaces` with the S3 of the settings. `sealer` None: no keys are taken."""

    settings: Settings
    sealer: Sealer | None

    @classmethod
    def of(cls, settings: Settings) -> S3Places:
        """Return the places; raises `SecretUnreadable` for a key file that cannot be used."""
        key_file = settings.secrets_key_file
        return cls(settings, None if key_file is None else Sealer.from_file(key_file))

    @property
    def rules(self) -> PlaceRules:
        """See `RequestPlaces.rules`."""
        shared = frozenset(self.settings.offline_shared_buckets)
        return PlaceRules(self.settings.s3_bucket, shared, self.sealer is not None)

    def check(self, asked: CheckedOfflineQuery, id_: str) -> None:
        """See `RequestPlaces.check`."""
        problems: list[Problem] = []
        try:
            if asked.source is not None:
                try:
                    self._check_source(asked, asked.source)
                except OfflineError as wrong:
                    problems.append(Problem(CODE, INPUT, str(wrong)))
            if asked.target is not None and not problems:
                bucket = Bucket(self.settings, asked.target.bucket, asked.keys.target)
                try:
                    Publication(self.settings, bucket, asked.target.folder(id_)).begin()
                except OfflineError as wrong:
                    problems.append(Problem(CODE, OUTPUT, str(wrong)))
        except (ClientError, BotoCoreError) as away:
            raise ObjectStoreUnavailable(f"S3: {away}") from away
        if problems:
            raise OfflineQueryInvalid(problems)

    def _check_source(self, asked: CheckedOfflineQuery, source: S3Source) -> None:
        bucket = Bucket(self.settings, source.bucket, asked.keys.source)
        first = list_files(bucket, source)[0]
        found = file_columns(bucket, source, first)
        wanted = [asked.timestamp_column, *asked.needed]
        if source.format != "json" and (missing := missing_columns(source, wanted, found)):
            raise InputInvalid(
                f"file `{first.key}` of bucket `{source.bucket}` has no column `{missing[0]}`; its "
                f"columns are {', '.join(found)}. Name them in `feature_to_column_map`"
            )

    def sealed(self, workspace: WorkspaceId, id_: str, keys: PlaceKeys) -> bytes:
        """See `RequestPlaces.sealed`."""
        assert self.sealer is not None, "keys are refused without a key file"
        return seal(self.sealer, workspace, id_, keys)

    def withdraw(self, row: OfflineRequest, sealed: bytes | None) -> None:
        """See `RequestPlaces.withdraw`."""
        target, keys = row.definition.target, NO_KEYS
        assert target is not None, "the request has a folder in a bucket"
        if sealed is not None and self.sealer is not None:
            keys = unseal(self.sealer, row.workspace, row.id, sealed)
        bucket = Bucket(self.settings, target.bucket, keys.target)
        try:
            Publication(self.settings, bucket, target.folder(row.id)).clear()
        except (ClientError, BotoCoreError) as away:
            raise ObjectStoreUnavailable(f"S3: {away}") from away
