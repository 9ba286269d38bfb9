"""Which hosts the platform connects to for a definition."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest

from fennel_core.connections.http_addresses import (
    AllowedHosts,
    HttpAddressRefused,
    HttpOrigin,
    is_public,
    resolved,
)


def found(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda host, port: list(addresses)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),  # noqa: S104  # never bound
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::"),
    ],
)
def test_addresses_within_a_network_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(HttpAddressRefused, match="FENNEL_HTTP_SINK_PRIVATE_HOSTS"):
        AllowedHosts(("a.example",)).addresses(
            HttpOrigin.of("https://a.example"), found("8.8.8.8", address)
        )


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("a.example", "https://a.example/x", True),
        ("A.Example", "https://a.EXAMPLE./x", True),
        ("a.example", "https://a.example:8443", False),
        ("a.example:8443", "https://a.example:8443", True),
        ("a.example:8443", "https://a.example", False),
        ("example", "https://a.example", False),
        ("a.example", "https://a.example.evil", False),
        ("2606:4700::1", "https://[2606:4700::1]", True),
        ("[2606:4700::1]:8443", "https://[2606:4700::1]:8443", True),
    ],
)
def test_a_host_is_allowed_by_its_whole_name_and_port(entry: str, url: str, allowed: bool) -> None:
    hosts, origin = AllowedHosts((entry,)), HttpOrigin.of(url)
    if allowed:
        assert hosts.addresses(origin, found("8.8.8.8")) == ["8.8.8.8"]
        return
    with pytest.raises(HttpAddressRefused, match="FENNEL_HTTP_SINK_HOSTS"):
        hosts.require(origin)


def test_by_default_no_host_is_allowed() -> None:
    with pytest.raises(HttpAddressRefused, match=r"`a.example:443`; .* FENNEL_HTTP_SINK_HOSTS"):
        AllowedHosts().require(HttpOrigin.of("https://a.example"))


def test_private_addresses_and_no_tls_are_for_hosts_that_are_named_for_it() -> None:
    plain = HttpOrigin.of("http://hooks.internal:8080")
    with pytest.raises(HttpAddressRefused, match="without TLS"):
        AllowedHosts(("hooks.internal:8080",)).require(plain)
    hosts = AllowedHosts((), ("hooks.internal:8080",))
    assert hosts.addresses(plain, found("10.0.0.1")) == ["10.0.0.1"]


def test_the_header_host_has_the_port_unless_it_is_the_default() -> None:
    urls = ("https://a.example:443", "http://a.example:443", "https://[::1]:8443/x")
    assert [HttpOrigin.of(url).authority for url in urls] == [
        *("a.example", "a.example:443", "[::1]:8443")
    ]


def test_a_host_without_an_address_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="has no address"):
        AllowedHosts(("a.example",)).addresses(HttpOrigin.of("https://a.example"), found())
    assert "127.0.0.1" in resolved("127.0.0.1", 80)
