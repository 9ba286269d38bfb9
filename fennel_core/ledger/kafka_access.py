"""What each component may do on a Kafka cluster with authentication: users and ACLs.

One table, `ACCESS`, has a row per component and kind of topic. Names of topics begin with their
workspace and their kind (`shop.topic.…`), so a rule is a prefix per workspace, and what no rule
allows is refused by the broker (`StandardAuthorizer`). Rules and users are only added, so to write
them again after a workspace was created changes nothing else.

    rules = rules_of([WorkspaceId("shop")])
    await write_access(settings, rules, passwords)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config
from fennel_core.ledger.errors import TransactionalIdsCollide
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId

REQUEST_S: Final = 30.0
SCRAM_ITERATIONS: Final = 8192
"""Kafka requires 4096; passwords are random, so more would protect nothing."""
USER_PREFIX: Final = "fennel-"
AUDIT_PREFIX: Final = "fennel-audit-"
INGEST_IDS: Final = "ingest."
"""How the transactional ids of ingest begin, which belong to no workspace."""
GROUPS: Final = ("fennel-core", "spark-kafka-")
"""Groups that librdkafka and Spark require a consumer to name. No offset is committed to them."""

DESCRIBE: Final = frozenset({AclOperation.DESCRIBE})
READ: Final = frozenset({AclOperation.READ})
WRITE: Final = frozenset({AclOperation.WRITE})
CONTROL: Final = frozenset(
    {
        *(AclOperation.CREATE, AclOperation.DELETE, AclOperation.READ),
        *(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.ALTER),
    }
)
"""Create and delete topics and records, and read what dead letters and retention are decided by."""
Operations = frozenset[AclOperation]

ACCESS: Final[Mapping[str, Mapping[AssetKind, Operations]]] = {
    "ingest": {AssetKind.RAW: WRITE, AssetKind.TOPIC: WRITE, AssetKind.DEAD: WRITE},
    "engine": {
        AssetKind.RAW: READ,
        AssetKind.TOPIC: READ | WRITE,
        AssetKind.REPLAYLOG: READ | WRITE,
        AssetKind.DEAD: WRITE,
    },
    # `/barrier` asks for the ends of raw topics, which source replays read.
    "query": {AssetKind.RAW: DESCRIBE, AssetKind.TOPIC: READ, AssetKind.QUERY_LOG: WRITE},
    "history": {AssetKind.RAW: READ, AssetKind.TOPIC: READ, AssetKind.QUERY_LOG: READ},
    # It hosts the sinks, too, which read what datasets have, and dead letters to send them again.
    "sources": {
        AssetKind.RAW: WRITE,
        AssetKind.TOPIC: READ | WRITE,
        AssetKind.DEAD: READ | WRITE,
        AssetKind.POSITIONS: READ | WRITE,
        AssetKind.SINK: READ | WRITE,
    },
    # It replays dead letters, which writes rows and what is settled, and rewinds streams.
    "definition": {kind: CONTROL for kind in AssetKind if kind is not AssetKind.JOB}
    | dict.fromkeys((AssetKind.TOPIC, AssetKind.DEAD, AssetKind.POSITIONS), CONTROL | WRITE),
}
"""What each component does with the topics of a workspace. Airflow's scheduler is `definition`."""


@dataclass(frozen=True, slots=True, order=True)
class AccessRule:
    """A component may do `operation` with what has names that begin with `prefix`."""

    component: str
    resource: str
    """`TOPIC`, `GROUP` or `TRANSACTIONAL_ID`."""
    prefix: str
    operation: str


def user_of(component: str) -> str:
    """Return the name of a component's Kafka user."""
    return f"{USER_PREFIX}{component}"


def rules_of(workspaces: Iterable[WorkspaceId]) -> Sequence[AccessRule]:
    """Return all rules of an installation with these workspaces, in order.

    Raises TransactionalIdsCollide.
    """
    rules = [
        AccessRule("ingest", "TRANSACTIONAL_ID", INGEST_IDS, "WRITE"),
        AccessRule("definition", "TOPIC", AUDIT_PREFIX, "CREATE"),
        AccessRule("definition", "TOPIC", AUDIT_PREFIX, "WRITE"),
        *(AccessRule(each, "GROUP", group, "READ") for each in _readers() for group in GROUPS),
    ]
    for workspace in workspaces:
        if f"{workspace}." == INGEST_IDS:
            raise TransactionalIdsCollide(workspace)
        rules += [
            AccessRule("engine", "TRANSACTIONAL_ID", f"{workspace}.{AssetKind.JOB}.", "WRITE"),
            AccessRule("sources", "TRANSACTIONAL_ID", f"{workspace}.{AssetKind.RAW}.", "WRITE"),
            AccessRule("sources", "TRANSACTIONAL_ID", f"{workspace}.{AssetKind.SINK}.", "WRITE"),
            AccessRule("sources", "TRANSACTIONAL_ID", f"{workspace}.{AssetKind.DEAD}.", "WRITE"),
            AccessRule("definition", "TRANSACTIONAL_ID", f"{workspace}.{AssetKind.RAW}.", "WRITE"),
            AccessRule("definition", "TRANSACTIONAL_ID", f"{workspace}.{AssetKind.DEAD}.", "WRITE"),
        ]
        rules += [
            AccessRule(component, "TOPIC", f"{workspace}.{kind}.", operation.name)
            for component, kinds in ACCESS.items()
            for kind, operations in kinds.items()
            for operation in operations
        ]
    return sorted(rules)


def _readers() -> list[str]:
    return [
        component
        for component, kinds in ACCESS.items()
        if any(AclOperation.READ in operations for operations in kinds.values())
    ]


async def write_access(
    settings: Settings, rules: Sequence[AccessRule], passwords: Mapping[str, str]
) -> None:
    """Write rules, and the SCRAM-SHA-512 password of each component in `passwords`.

    The user of `settings` must be allowed to alter the cluster. Raises SystemUnavailable.
    """
    await asyncio.to_thread(_write, settings, rules, passwords)


def _write(settings: Settings, rules: Sequence[AccessRule], passwords: Mapping[str, str]) -> None:
    admin = AdminClient(client_config(settings))
    requests: dict[Any, Any] = {}
    if passwords:
        requests |= admin.alter_user_scram_credentials(
            [_credential(component, text) for component, text in sorted(passwords.items())],
            request_timeout=REQUEST_S,
        )
    requests |= admin.create_acls([_binding(rule) for rule in rules], request_timeout=REQUEST_S)
    for each in requests.values():
        try:
            each.result(REQUEST_S)
        except (KafkaException, TimeoutError) as failed:
            raise SystemUnavailable(f"Kafka wrote no users and rules: {failed}") from failed


def _credential(component: str, password: str) -> UserScramCredentialUpsertion:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, SCRAM_ITERATIONS)
    return UserScramCredentialUpsertion(user_of(component), info, password.encode())


def _binding(rule: AccessRule) -> AclBinding:
    return AclBinding(
        ResourceType[rule.resource],
        rule.prefix,
        ResourcePatternType.PREFIXED,
        f"User:{user_of(rule.component)}",
        "*",
        AclOperation[rule.operation],
        AclPermissionType.ALLOW,
    )
