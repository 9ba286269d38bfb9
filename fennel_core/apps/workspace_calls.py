"""Calls of commands to the API with the token of a workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fennel_core.apps.command_context import fail, select

if TYPE_CHECKING:
    import httpx

F = TypeVar("F", bound=Callable[..., Any])
REQUEST_TIMEOUT_S: Final = 300.0
Caller = tuple[str | None, str | None]
"""The API's address (None: this platform's) and the token, as the options of a command give them.
"""


def of_workspace(command: F) -> F:
    """Add the options with which a command finds the API and the workspace."""
    token = click.option(
        "--token", envvar="FENNEL_TOKEN", help="Token of a workspace; default: FENNEL_TOKEN."
    )
    url = click.option(
        "--url", envvar="FENNEL_URL", help="Address of the API; default: this platform."
    )
    return url(token(command))


@contextmanager
def opened(
    caller: Caller, method: str, path: str, asked: dict[str, Any], body: dict[str, Any] | None
) -> Iterator[httpx.Response]:
    """Open the response to a request; exits with the message of an error.

    `asked`: the query of the URL.
    """
    import httpx

    url, token = caller
    if token is None:
        fail("Name the token of a workspace: --token TOKEN, or set FENNEL_TOKEN.")
    address = url or select(())[0].settings.query_url
    try:
        with httpx.stream(
            method,
            f"{address}/api/v1{path}",
            params=asked,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
        ) as response:
            if response.is_error:
                text = response.read().decode(errors="replace").strip()
                fail(text or f"The API returned status {response.status_code}.")
            yield response
    except httpx.HTTPError as error:
        fail(f"The API at {address} does not respond ({error}). Is the platform up?")


def called(
    caller: Caller,
    method: str,
    path: str,
    asked: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Send a request and return its JSON; exits with the message of an error."""
    import json

    with opened(caller, method, path, asked or {}, body) as response:
        parsed: dict[str, Any] = json.loads(response.read())
    return parsed
