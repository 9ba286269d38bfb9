"""Which `Host` headers a server accepts.

A web page can make a browser send requests to any address, also to a server that listens on
loopback. By DNS rebinding (the page's own name resolves to 127.0.0.1 a moment later) it can even
read the responses, because for the browser they are of the page's own origin. Such requests carry
the page's name in `Host`. A server therefore accepts only names that are its own: IP addresses
(a page's name is never one), `localhost`, the name in the platform's network, and what the operator
lists in FENNEL_ALLOWED_HOSTS.

Development tokens are no secrets, so for them the host must be of this machine.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Protocol

from fennel_core.settings.model import EVERY_ADDRESS

DEV_PREFIX: Final = "dev-"
"""Development tokens are this and the name of a workspace."""
EVERY_HOST: Final = "*"
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.IGNORECASE)


class HostNameSettings(Protocol):
    """The settings that name hosts."""

    @property
    def host(self) -> str: ...
    @property
    def published_host(self) -> str | None: ...
    @property
    def reach_by_name(self) -> bool: ...
    @property
    def allowed_hosts(self) -> str: ...


@dataclass(frozen=True, slots=True)
class HostRules:
    """`names`: accepted beside IP addresses and `localhost`, in lower case; one that begins with a
    dot allows the names that end with it. `internal`: names that no browser outside the
    platform's network resolves.
    """

    names: frozenset[str] = frozenset()
    internal: frozenset[str] = frozenset()

    def allows(self, header: str) -> bool:
        """Return whether a request with this `Host` header is for this server."""
        name = _name_in(header)
        if name is None:
            return False
        return (
            EVERY_HOST in self.names
            or name in self.names
            or name in self.internal
            or _is_local_name(name)
            or _address(name) is not None
            or any(each.startswith(".") and name.endswith(each) for each in self.names)
        )

    def allows_development_tokens(self, header: str) -> bool:
        """Return whether the host is this machine, or another part of the platform."""
        name = _name_in(header)
        if name is None:
            return False
        address = _address(name)
        is_loopback = address is not None and address.is_loopback
        return is_loopback or _is_local_name(name) or name in self.internal


def host_rules(settings: HostNameSettings, service: str, *, public: bool) -> HostRules:
    """Return the rules of a server. `public`: users call it; otherwise the platform's parts do."""
    listed = {each.strip().lower() for each in settings.allowed_hosts.split(",") if each.strip()}
    own = {settings.host, settings.published_host or settings.host} - EVERY_ADDRESS
    by_name = frozenset({service}) if settings.reach_by_name else frozenset[str]()
    return HostRules(
        frozenset(listed | {each.lower() for each in own} | (by_name if public else frozenset())),
        frozenset() if public else by_name,
    )


def _name_in(header: str) -> str | None:
    """Return the host without its port, in lower case; None if the header is malformed."""
    match = _HOST.fullmatch(header)
    return None if match is None else match[1].lower().removeprefix("[").removesuffix("]")


def _is_local_name(name: str) -> bool:
    # Names below `localhost` resolve to loopback (RFC 6761).
    return name == "localhost" or name.endswith(".localhost")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
