"""The properties of stored connectors: as people give them, and as the protocol has them.

They have the names that the client's classes give them, so `Kafka(bootstrap_servers=…)` in code and
`connector add shop kafka --set bootstrap_servers=…` say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fennel_core.connectors.errors import PropertiesInvalid
from fennel_core.connectors.references import Access
from fennel_core.graph.passes.http_sinks import unusable_endpoint
from fennel_core.graph.passes.streams import SECURITY, unusable_kafka, unusable_s3
from fennel_core.graph.passes.tables import unusable_database
from fennel_core.wire import connectors as c
from fennel_core.wire.decode_connectors import decode_database
from fennel_core.wire.gen import connector_pb2

PORTS: Final = {"postgres": 5432, "mysql": 3306}
"""The ports of databases that are given without one."""
LARGEST_PORT: Final = 65_535
LONGEST_NAME: Final = 200
"""Characters of a name: it is part of a key in Postgres, of paths and of commands."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `path`: the fields that lead to it in the message of its kind.

    `secret`: is never shown, and commands read it from elsewhere than their own words. `login`: may
    change in a rotation.
    """

    name: str
    path: tuple[str, ...]
    required: bool = False
    secret: bool = False
    login: bool = False


DATABASE: Final = (
    Property("host", ("host",), required=True),
    Property("port", ("port",)),
    Property("db_name", ("database",), required=True),
    Property("username", ("user",), required=True, login=True),
    Property("password", ("password",), secret=True, login=True),
    Property("jdbc_params", ("jdbc_params",)),
)
PROPERTIES: Final[Mapping[str, tuple[Property, ...]]] = {
    "kafka": (
        Property("bootstrap_servers", ("bootstrap_servers",), required=True),
        Property("security_protocol", ("security_protocol",), required=True),
        Property("sasl_mechanism", ("sasl_mechanism",)),
        Property("sasl_plain_username", ("sasl_plain_username",), login=True),
        Property("sasl_plain_password", ("sasl_plain_password",), secret=True, login=True),
    ),
    "postgres": DATABASE,
    "mysql": DATABASE,
    "s3": (
        Property("aws_access_key_id", ("aws_access_key_id",), required=True, login=True),
        Property(
            "aws_secret_access_key",
            ("aws_secret_access_key",),
            required=True,
            secret=True,
            login=True,
        ),
    ),
    "http": (
        Property("host", ("host",), required=True),
        Property("healthz", ("healthz",), required=True),
        Property("ca_cert", ("ca_cert", "secret"), secret=True, login=True),
    ),
}


def message_of(
    name: str, kind: str, given: Mapping[str, object], before: bytes | None = None
) -> connector_pb2.ExtDatabase:
    """Return the connector with the properties `given`, its new secrets not sealed yet.

    `before`: the stored connector of a rotation, which keeps what is not given; then only what
    belongs to the login may be. Raises `PropertiesInvalid` with all reasons.
    """
    if kind not in PROPERTIES:
        kinds = ", ".join(PROPERTIES)
        raise PropertiesInvalid(f"there is no kind `{kind}` of connectors; kinds: {kinds}")
    rotates = before is not None
    properties = {each.name: each for each in PROPERTIES[kind] if each.login or not rotates}
    message = connector_pb2.ExtDatabase(name=name)
    if before is not None:
        message.ParseFromString(before)
    else:
        getattr(message, kind).SetInParent()
        if kind in PORTS:
            getattr(message, kind).port = PORTS[kind]
    reasons = []
    for key, value in given.items():
        found = properties.get(key)
        if found is None:
            what = "is not changed by a rotation" if rotates else f"is none of a {kind} connector"
            known = ", ".join(properties) or "none"
            reasons.append(f"property `{key}` {what}; properties: {known}")
        elif (reason := _set(getattr(message, kind), found, value)) is not None:
            reasons.append(reason)
    if rotates and not given:
        reasons.append(f"a rotation changes one of {', '.join(properties)}; give the new one")
    reasons += [
        f"property `{each.name}` is missing"
        for each in properties.values()
        if each.required and not rotates and not given.get(each.name)
    ]
    if not _is_name(name):
        reasons.append(
            f"a name has 1 to {LONGEST_NAME} characters, no blanks and no `/`, and begins with "
            "neither `-` nor `.`"
        )
    if not reasons:
        reasons += [f"connector `{name}` {why}" for why in _unusable(message)]
    if reasons:
        raise PropertiesInvalid("; ".join(reasons))
    return message


def shown(database_message: bytes) -> dict[str, str | int]:
    """Return the properties of a stored connector; of a secret only that it is set."""
    message = connector_pb2.ExtDatabase.FromString(database_message)
    kind = message.WhichOneof("variant")
    assert kind in PROPERTIES, "only these kinds are stored"
    found: dict[str, str | int] = {}
    for each in PROPERTIES[kind]:
        value: Any = getattr(message, kind)
        for field in each.path:
            value = getattr(value, field)
        if value:
            sealed = each.secret or c.SealedSecret.parse(str(value)) is not None
            found[each.name] = "(set)" if sealed else value
    return found


def _is_name(name: str) -> bool:
    """Return whether a name can be written in a command and in the path of a URL."""
    words = all(char.isprintable() and char not in "/ " for char in name)
    return words and 0 < len(name) <= LONGEST_NAME and name[0] not in "-."


def _set(target: Any, given: Property, value: object) -> str | None:
    """Set a property; return why it cannot be set."""
    *path, field = given.path
    for part in path:
        target = getattr(target, part)
    if isinstance(getattr(target, field), int):
        text = str(value)
        if not (text.isdecimal() and 0 < int(text) <= LARGEST_PORT):
            return f"property `{given.name}` is no port: {text[:20]}"
        setattr(target, field, int(text))
        return None
    if not isinstance(value, str) or not value:
        return f"property `{given.name}` is empty or no text"
    if c.SealedSecret.parse(value) is not None:
        return f"property `{given.name}` begins as stored secrets do, and cannot be stored"
    setattr(target, field, value)
    return None


def _unusable(message: connector_pb2.ExtDatabase) -> list[str]:
    """Return what the platform refuses about connectors in code, too, and what has no effect."""
    database = decode_database(message)
    assert isinstance(database, Access), "properties with an address are required"
    match database:
        case c.Kafka():
            login = (database.login.user, database.login.password)
            without_effect = database.security_protocol == SECURITY[0] and any(login)
            found = [*unusable_kafka(database)]
            if without_effect:
                found.append(f"has a user or password, without effect with `{SECURITY[0]}`")
            return found
        case c.Postgres() | c.MySQL():
            return [*unusable_database(database)]
        case c.S3():
            return [*unusable_s3(database)]
        case c.Http():
            return [*unusable_endpoint(database)]
