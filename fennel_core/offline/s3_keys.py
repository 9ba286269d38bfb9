"""Keys of users' buckets: sealed on S3 beside the objects of a request, and deleted with them.

They are in no table, no log and no answer; a run opens them with FENNEL_SECRETS_KEY_FILE.
"""

from __future__ import annotations

import hashlib

import msgspec
from pydantic import SecretStr

from fennel_core.connections.secrets import Sealer
from fennel_core.offline.request_files import request_folder
from fennel_core.offline.s3_places import BucketKeys, PlaceKeys
from fennel_core.vocab.ids import WorkspaceId

_Pair = tuple[str, str]


def keys_object(workspace: WorkspaceId, id_: str, sealed: bytes) -> str:
    """Return the key of the object that has the keys of a request."""
    digest = hashlib.sha256(sealed).hexdigest()[:16]
    return f"{request_folder(workspace, id_)}keys/{digest}"


def seal(sealer: Sealer, workspace: WorkspaceId, id_: str, keys: PlaceKeys) -> bytes:
    """Return the keys of a request, encrypted for it alone."""
    text = msgspec.json.encode([_pair(keys.source), _pair(keys.target)]).decode()
    return sealer.seal(workspace, _name(id_), text)


def unseal(sealer: Sealer, workspace: WorkspaceId, id_: str, sealed: bytes) -> PlaceKeys:
    """Return the keys of a request; raises `SecretUnreadable`."""
    text = sealer.open(workspace, _name(id_), sealed)
    source, target = msgspec.json.decode(text, type=tuple[_Pair | None, _Pair | None])
    return PlaceKeys(_keys(source), _keys(target))


def _name(id_: str) -> str:
    return f"buckets of offline query {id_}"


def _pair(keys: BucketKeys | None) -> _Pair | None:
    return None if keys is None else (keys.access_key, keys.secret_key.get_secret_value())


def _keys(pair: _Pair | None) -> BucketKeys | None:
    return None if pair is None else BucketKeys(pair[0], SecretStr(pair[1]))
