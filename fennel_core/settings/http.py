"""Settings of the HTTP servers (names, TLS, what one process takes on), tokens, keys, passwords."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

_ROLE = r"(=(query|log|commit|admin))?"
_ONE_USER = rf"[^:,]+:(\*{_ROLE}|[a-z0-9-]+{_ROLE}(\+[a-z0-9-]+{_ROLE})*)"
"""A user of Airflow, and workspaces with a role, as in `bob:shop=query+market`."""


class HttpSettings(BaseSettings):
    """Which requests are accepted, and how many at a time."""

    allowed_hosts: str = Field(
        "",
        description="Names under which users reach the API, separated by commas: other `Host` "
        "headers than addresses and `localhost` are refused, because a web page could use them. "
        "`.example.com` allows every name that ends so, `*` for all.",
    )
    tls_certificate: Path | None = Field(
        None,
        description="Certificate chain (PEM) of the API's port, which then speaks HTTPS only. "
        "Read again when it changes.",
    )
    tls_key: Path | None = Field(None, description="Private key (PEM) of the certificate.")
    bodies_bytes: int = Field(
        512 * 1024 * 1024,
        gt=0,
        description="Bytes of request bodies above 64 KiB that one server process holds; beyond "
        "that requests are refused with status 503.",
    )
    requests_at_once: int = Field(
        1000,
        gt=0,
        description="Requests under way in one server process; beyond that they are refused with "
        "status 503.",
    )
    workspace_requests_at_once: int = Field(
        500,
        gt=0,
        description="Requests under way of one workspace in one server process; beyond that they "
        "are refused with status 429, so that none takes a server from the others.",
    )
    workspace_requests_per_s: float = Field(
        0.0,
        ge=0,
        description="Requests per second of one workspace to one server process; beyond that they "
        "are refused with status 429. 0: no limit.",
    )
    connections: int = Field(
        10_000, gt=0, description="Open connections of one server process; bounds its memory."
    )
    header_timeout_s: float = Field(
        10.0,
        gt=0,
        description="A connection that has not sent the header of a request after this, s, is "
        "closed.",
    )
    body_timeout_s: float = Field(
        60.0,
        gt=0,
        description="A request whose body has not arrived after this, s, is ended with status 408.",
    )


class SecuritySettings(BaseSettings):
    """Tokens, keys and passwords."""

    dev_tokens: bool = Field(
        False,
        description="Accept tokens `dev-<name>` for workspace `<name>`, created at first use. For "
        "loopback only, because every caller is admitted.",
    )
    admin_token: SecretStr = Field(
        SecretStr(""),
        description="Bearer token of the administrator. Empty: such requests are refused.",
    )
    admin_token_sha256: str = Field(
        "",
        pattern="^([0-9a-f]{64})?$",
        description="SHA-256 of the administrator's token, in hex: all that a server needs to know "
        "of it. Empty: that of FENNEL_ADMIN_TOKEN.",
    )
    airflow_workspaces: str = Field(
        "",
        pattern=rf"^$|^{_ONE_USER}(,{_ONE_USER})*$",
        description="Roles of Airflow's users in workspaces, on the commits page and in the forms "
        "of DAGs, like `alice:*=admin,bob:shop=query+market`; without a role: commit. Users who "
        "are not listed may do nothing; a user is listed once. Empty: every user whom Airflow "
        "lets see and trigger DAGs.",
    )
    secrets_key_file: Path | None = Field(
        None, description="File (mode 0600) with the key that encrypts users' secrets at rest."
    )

    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Security protocol of the connections to the brokers."
    )
    kafka_sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism, with a SASL protocol."
    )
    kafka_user: str = Field(
        "", description="Kafka user of this process; give each server its own, with its own ACLs."
    )
    kafka_password: SecretStr = Field(SecretStr(""), description="Password of the Kafka user.")
    kafka_passwords_dir: Path | None = Field(
        None,
        description="Folder with the password of each component's Kafka user, as "
        "`kafka-access --passwords` writes it. `up` then starts no broker: each service connects "
        "to FENNEL_KAFKA_BOOTSTRAP with its own user.",
    )
    kafka_ca_file: Path | None = Field(
        None, description="Certificates (PEM) that sign those of the brokers. Unset: the system's."
    )

    @field_validator("airflow_workspaces")
    @classmethod
    def _nothing_listed_twice(cls, setting: str) -> str:
        entries = [entry.split(":", 1) for entry in setting.split(",") if entry]
        if user := _repeated([user for user, _ in entries]):
            raise ValueError(f"user `{user}` is listed twice; join the workspaces with `+`")
        for user, listed in entries:
            if workspace := _repeated([each.partition("=")[0] for each in listed.split("+")]):
                raise ValueError(
                    f"workspace `{workspace}` of user `{user}` is listed twice; keep one role"
                )
        return setting

    @property
    def admin_digest(self) -> bytes | None:
        """SHA-256 of the administrator's token; None without one."""
        token = self.admin_token.get_secret_value()
        if token:
            return hashlib.sha256(token.encode()).digest()
        return bytes.fromhex(self.admin_token_sha256) or None


def _repeated(names: Sequence[str]) -> str | None:
    """Return the first name that is there before, None if there is none."""
    return next((name for place, name in enumerate(names) if name in names[:place]), None)
