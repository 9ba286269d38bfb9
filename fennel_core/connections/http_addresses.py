"""Which hosts of users the platform connects to: an allow-list, and a check of resolved addresses.

Theory. A definition chooses the address of an HTTP sink, so it could make the platform send rows to
services that only its network reaches (server-side request forgery). A host must be named by the
operator, and every address that its name resolves to must be a public one, unless the operator
allows private ones for this very host. The connection is made to an address that was checked, so a
name that resolves to another one a moment later changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from fennel_core.connections.errors import ConnectionsError
from fennel_core.settings.model import Settings

DEFAULT_PORTS: Final = {"https": 443, "http": 80}
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
"""Addresses that a gateway translates to the IPv4 address in their last four bytes."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Collection[str]]
"""Returns the addresses of a host and port; raises OSError."""


class HttpAddressRefused(ConnectionsError):
    """The installation does not connect to this host. Only its operator can change that."""

    code = "sink-host-not-allowed"


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Scheme, host and port of a URL; the host in lower case, without brackets."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> HttpOrigin:
        """Return the origin of a URL with a valid scheme, host and port."""
        parts = urlsplit(url)
        assert parts.hostname is not None, "validation requires a host"
        scheme = parts.scheme.lower()
        return cls(scheme, parts.hostname.rstrip("."), parts.port or DEFAULT_PORTS[scheme])

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that the operator allows, as `host` or `host:port`."""

    public: tuple[str, ...] = ()
    private: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> AllowedHosts:
        """Return what the installation's settings allow."""
        return cls(settings.http_sink_hosts, settings.http_sink_private_hosts)

    def require(self, origin: HttpOrigin) -> None:
        """Return if connections to `origin` are allowed, by its name. Raises HttpAddressRefused."""
        host = f"{origin.host}:{origin.port}"
        if _named(self.private, origin):
            return
        if not _named(self.public, origin):
            raise HttpAddressRefused(
                f"this platform sends no rows to `{host}`; its operator may allow the host in "
                "FENNEL_HTTP_SINK_HOSTS"
            )
        if origin.scheme != "https":
            raise HttpAddressRefused(
                f"`{host}` would be written to without TLS; use https, or let the operator name "
                "the host in FENNEL_HTTP_SINK_PRIVATE_HOSTS"
            )

    def addresses(self, origin: HttpOrigin, resolve: Resolve) -> list[str]:
        """Return the addresses of `origin`, each of them allowed; at least one.

        Raises HttpAddressRefused, and OSError if the host has no address.
        """
        self.require(origin)
        found = list(dict.fromkeys(resolve(origin.host, origin.port)))
        if not found:
            raise OSError(f"`{origin.host}` has no address")
        if not _named(self.private, origin):
            for text in found:
                if not is_public(ipaddress.ip_address(text)):
                    raise HttpAddressRefused(
                        f"`{origin.host}` has the address {text}, which is not a public one; its "
                        "operator may allow that in FENNEL_HTTP_SINK_PRIVATE_HOSTS"
                    )
        return found


def is_public(address: Address) -> bool:
    """Return whether an address is one of the Internet, also where it contains another one."""
    inner = embedded(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved)


def embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to, None if it is no such address."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host as the system resolves them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope (`%eth0`) belongs to link-local addresses.
    return [str(address[0]).partition("%")[0] for *_, address in found]


def _named(entries: Collection[str], origin: HttpOrigin) -> bool:
    for entry in entries:
        text = entry.strip().lower()
        if text == f"{origin.host}:{origin.port}" or text == f"[{origin.host}]:{origin.port}":
            return True
        if text.strip("[]") == origin.host and origin.port == DEFAULT_PORTS[origin.scheme]:
            return True
    return False
