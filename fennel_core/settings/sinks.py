"""Settings of sinks: which hosts outside of the platform may be sent rows."""

from pydantic import Field
from pydantic_settings import BaseSettings


class SinkSettings(BaseSettings):
    """Where definitions may make the platform connect to."""

    http_sink_hosts: tuple[str, ...] = Field(
        (),
        description="Hosts that HTTP sinks may write to, as JSON: `host` for port 443, or "
        "`host:port`. Empty: no HTTP sink is accepted, because a definition chooses the address.",
    )
    http_sink_private_hosts: tuple[str, ...] = Field(
        (),
        description="Hosts of HTTP sinks that may have loopback, link-local or private addresses, "
        "and may be written to without TLS, as JSON: `host` (ports 443 and 80) or `host:port`. "
        "Name no host here that other services of the platform's network listen on.",
    )
