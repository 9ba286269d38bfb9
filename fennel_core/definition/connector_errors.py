"""Errors of the calls about stored connectors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from shlex import quote

from fennel_core.definition.errors import DefinitionError
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import NamedReference

NAMED = 20
"""Names that an error lists."""


class ConnectorError(DefinitionError):
    """Root of these errors. The class fixes status and code."""


class ConnectorUnknown(ConnectorError):
    """The workspace stores no connector of this name."""

    STATUS = 404
    CODE = "connector-unknown"

    def __init__(self, name: str, known: Collection[str]) -> None:
        shown = ", ".join(sorted(known)[:NAMED]) or "none"
        super().__init__(f"this workspace stores no connector `{name}`; its connectors: {shown}")


class ConnectorExists(ConnectorError):
    """A connector of this name is stored, and the call would replace it."""

    STATUS = 409
    CODE = "connector-exists"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"connector `{name}` is stored already; give it new credentials with `fennel-core "
            f"connector rotate {quote(name)}`, or replace it with `connector add --replace`"
        )


class ConnectorInvalid(ConnectorError):
    """The properties make no connector that can be used."""

    STATUS = 400
    CODE = "connector-invalid"


class ConnectorUnreachable(ConnectorError):
    """The system refuses the connector, or what uses it; the stored one is as it was."""

    STATUS = 409
    CODE = "connector-unreachable"

    def __init__(self, name: str, problems: Sequence[Problem], *, changes: bool) -> None:
        texts = "; ".join(dict.fromkeys(problem.text for problem in problems))
        after = ". Nothing was changed; correct it, or add --unchecked to store it all the same"
        super().__init__(
            f"connector `{name}` cannot be used: {texts}{after if changes else ''}", problems
        )


class ConnectorInUse(ConnectorError):
    """Sources or sinks have the connector."""

    STATUS = 409
    CODE = "connector-in-use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        super().__init__(
            f"connector `{name}` is used by {listed(users)}; commit without them first"
        )


class ConnectorRemoved(ConnectorError):
    """Connectors that a commit uses were removed after it was checked with them."""

    STATUS = 409
    CODE = "connector-removed"

    def __init__(self, references: Collection[NamedReference]) -> None:
        first, *others = sorted((each.name, each.kind) for each in references)
        more = f" (and {len(others)} more)" if others else ""
        super().__init__(
            f"connector `{first[0]}`{more} was removed while the commit was checked; add it again "
            f"(fennel-core connector add {quote(first[0])} {first[1]} --set …), or commit without "
            "what uses it"
        )


class ConnectorMoves(ConnectorError):
    """Another address or kind is perhaps another system, and the connector is used."""

    STATUS = 409
    CODE = "connector-moves"

    def __init__(
        self, name: str, places: tuple[str, str], users: Sequence[str], *, may_move: bool
    ) -> None:
        """`places`: where it leads, and would lead; `may_move`: both are of one kind."""
        same = "if it is the same system at another address, add --moved, else " if may_move else ""
        super().__init__(
            f"connector `{name}` leads to {places[0]} and would lead to {places[1]}, and is used "
            f"by {listed(users)}; {same}add it by another name"
        )


class ConnectorRedefined(ConnectorError):
    """The code of a branch has another connector of this name."""

    STATUS = 409
    CODE = "connector-redefined"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        super().__init__(
            f"connector `{name}` is another one in the code of {listed(users)}; store it by "
            "another name, or with the same kind and address"
        )


class ConnectorChanged(ConnectorError):
    """Another call changed the connector at the same time."""

    STATUS = 409
    CODE = "connector-changed"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"connector `{name}` was changed by another call just now; look at it and try again"
        )


def listed(users: Sequence[str]) -> str:
    """Return the first users in one text, and how many more there are."""
    more = f", and {len(users) - NAMED} more" if len(users) > NAMED else ""
    return ", ".join(users[:NAMED]) + more
