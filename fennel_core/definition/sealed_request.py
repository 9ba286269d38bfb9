"""Seal the plain secrets in the connectors of a commit, before anything is stored.

A user may write a password into a connector instead of a reference to a secret, also inside a text
with several parameters, so such a text is a secret as a whole. The bytes of the commit are stored
twice, as received and merged into the version, and are kept as long as the commit. So each plain
secret is replaced by its encrypted form as soon as a commit arrives, under the key of the
workspace's secrets (`connections/secrets.py`); the decoder reads it as a `SealedSecret`, which
`connections/external_kafka.py` opens to read a source.

`reseal_body` encrypts them again after a change of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from fennel_core.connections.secrets import CREDENTIAL, Sealer
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import SealedSecret
from fennel_core.wire.gen import connector_pb2, services_pb2

SECRET_FIELDS: Final = frozenset(
    {
        *("password", "sasl_plain_password", "aws_secret_access_key", "service_account_key"),
        *("token", "jdbc_params", "sasl_jaas_config", "headers"),
    }
)
"""Fields of connectors with a secret as plain text, as a message with the text in `value`, or as a
map with the texts as values.
"""
SECRET_OF: Final = {"secret": "SensitiveDatum"}
"""Fields that hold a secret in one kind of message only."""


@dataclass(frozen=True, slots=True)
class SealedBody:
    """A commit's bytes without plain secrets.

    `comparable` is equal for equal commits; `stored` is different at every encryption.
    """

    stored: bytes
    comparable: bytes


def seal_request(body: bytes, workspace: WorkspaceId, sealer: Sealer | None) -> SealedBody:
    """Return `body` with every plain secret of its connectors sealed.

    A body without plain secrets, or that is not a SyncRequest, is returned unchanged. Raises
    SecretsNotConfigured if there is a plain secret and no key.
    """
    try:
        message = services_pb2.SyncRequest.FromString(body)
    except DecodeError:
        return SealedBody(body, body)  # decoding the commit reports what is wrong
    found: dict[str, SealedSecret] = {}
    _replace_secrets(message, _sealing(workspace, sealer, found))
    if not found:
        return SealedBody(body, body)
    stored = bytes(message.SerializeToString(deterministic=True))
    _replace_secrets(message, _without_token)
    return SealedBody(stored, bytes(message.SerializeToString(deterministic=True)))


def reseal_body(body: bytes, workspace: WorkspaceId, sealer: Sealer) -> bytes:
    """Return the stored `body` with its secrets encrypted with the first key of `sealer`.

    Raises SecretUnreadable if no key of `sealer` opens one of them.
    """
    message = services_pb2.SyncRequest.FromString(body)
    _replace_secrets(message, _sealing_again(workspace, sealer))
    return bytes(message.SerializeToString(deterministic=True))


def seal_connector(
    connector: connector_pb2.ExtDatabase, workspace: WorkspaceId, sealer: Sealer | None
) -> bytes:
    """Return a connector as it is stored; secrets of it that are sealed already stay as they are.

    Raises SecretsNotConfigured if there is a plain secret and no key.
    """
    seal = _sealing(workspace, sealer, {})
    _replace_in(connector, lambda text: text if SealedSecret.parse(text) else seal(text))
    return bytes(connector.SerializeToString(deterministic=True))


def reseal_connector(stored: bytes, workspace: WorkspaceId, sealer: Sealer) -> bytes:
    """Return a stored connector with its secrets encrypted again; see `reseal_body`."""
    message = connector_pb2.ExtDatabase.FromString(stored)
    _replace_in(message, _sealing_again(workspace, sealer))
    return bytes(message.SerializeToString(deterministic=True))


def _sealing(
    workspace: WorkspaceId, sealer: Sealer | None, found: dict[str, SealedSecret]
) -> Callable[[str], str]:
    """Return a function that seals a text, and notes it in `found`."""

    def seal(value: str) -> str:
        if sealer is None:
            raise SecretsNotConfigured
        if value not in found:
            token = sealer.seal(workspace, CREDENTIAL, value).decode("ascii")
            found[value] = SealedSecret(sealer.fingerprint(workspace, value), token)
        return found[value].text

    return seal


def _sealing_again(workspace: WorkspaceId, sealer: Sealer) -> Callable[[str], str]:
    def again(text: str) -> str:
        sealed = SealedSecret.parse(text)
        assert sealed is not None, "every stored secret is sealed"
        value = sealer.open(workspace, CREDENTIAL, sealed.token.encode("ascii"))
        token = sealer.seal(workspace, CREDENTIAL, value).decode("ascii")
        return SealedSecret(sealer.fingerprint(workspace, value), token).text

    return again


def _without_token(text: str) -> str:
    sealed = SealedSecret.parse(text)
    assert sealed is not None, "every secret was sealed"
    return sealed.fingerprint


def _replace_secrets(message: services_pb2.SyncRequest, change: Callable[[str], str]) -> None:
    for part in (*message.extdbs, *message.sources, *message.sinks):
        _replace_in(part, change)


def _replace_in(message: Message, change: Callable[[str], str]) -> None:
    for descriptor, value in message.ListFields():
        name = descriptor.name
        is_secret = name in SECRET_FIELDS or SECRET_OF.get(name) == message.DESCRIPTOR.name
        if isinstance(value, str):
            if is_secret and value:
                setattr(message, name, change(value))
        elif isinstance(value, Message):
            if is_secret and value.DESCRIPTOR.name == "StringValue":
                value.value = change(value.value)  # type: ignore[attr-defined]  # a StringValue
            else:
                _replace_in(value, change)
        elif _is_map(descriptor):
            for key in list(value) if is_secret else ():
                value[key] = change(value[key])
        elif descriptor.message_type is not None:
            for each in value:
                _replace_in(each, change)


def _is_map(descriptor: FieldDescriptor) -> bool:
    kind = descriptor.message_type
    return kind is not None and kind.GetOptions().map_entry
