"""`/dead_letters`: list, show, replay and drop the dead letters of a workspace."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from fennel_core.connections.audit_events import Action
from fennel_core.definition.attached import attached
from fennel_core.definition.json_messages import (
    json_body,
    json_response,
    object_body,
    optional_flag,
)
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Committer, State
from fennel_core.redrive.api_errors import LetterFilterMalformed
from fennel_core.redrive.letters import LetterFilter
from fennel_core.redrive.pages import Place
from fennel_core.redrive.service import Redrive

MOST_SHOWN: Final = 1000
FILTERS: Final = ("dataset", "source", "since", "until", "reason", "sink")
REPLAY_FIELDS: Final = frozenset({*FILTERS, "dry_run"})
DROP_FIELDS: Final = REPLAY_FIELDS | {"all"}


router = APIRouter(prefix=f"{API}/dead_letters", tags=["dead_letters"])
Service = Annotated[Redrive, Depends(attached("redrive", Redrive))]


def _body(fields: frozenset[str]) -> dict[str, Any]:
    kinds = {name: "string" if name in FILTERS else "boolean" for name in sorted(fields)}
    return object_body({name: {"type": kind} for name, kind in kinds.items()}, None)


def filter_of(
    dataset: Annotated[str | None, Query(description="A dataset, or the title of a job.")] = None,
    source: Annotated[str | None, Query(description="As `shop/orders`.")] = None,
    since: Annotated[str | None, Query(description="Written at this time or later.")] = None,
    until: Annotated[str | None, Query(description="Written before this time.")] = None,
    reason: Annotated[str | None, Query(description="A part of the reason.")] = None,
    sink: Annotated[str | None, Query(description="As `hooks/rows`.")] = None,
) -> LetterFilter:
    """Return the filter in a query string. Raises LetterFilterMalformed."""
    return LetterFilter(dataset, source, _ms("since", since), _ms("until", until), reason, sink)


Wanted = Annotated[LetterFilter, Depends(filter_of)]
Rows = Annotated[int, Query(ge=1, le=MOST_SHOWN, description="At most so many.")]
After = Annotated[str | None, Query(description="`next` of the response before.")]


@router.get("")
async def list_letters(principal: Committer, service: Service, wanted: Wanted) -> Response:
    """List the open dead letters by dataset or job, source and kind, with the newest reason."""
    return json_response({"dead_letters": await service.counts(principal.workspace, wanted)})


@router.get("/rows")
async def show_letters(
    state: State,
    principal: Committer,
    service: Service,
    wanted: Wanted,
    n: Rows = 20,
    after: After = None,
) -> Response:
    """Show rows of open dead letters with the reason and where the source had them."""
    place = None if after is None else Place.parse(after)
    async with principal.audited(state, Action.SHOW_DEAD_LETTERS, subject_of(wanted)):
        rows, following = await service.rows(principal.workspace, wanted, n, place)
    return json_response({"rows": rows, "next": None if following is None else following.text()})


@router.post("/replay", openapi_extra=_body(REPLAY_FIELDS))
async def replay(
    request: Request, state: State, principal: Committer, service: Service
) -> Response:
    """Type the rows of dead letters again, and write those that fit now, each of them once; order
    that sinks send the changes of theirs again.
    """
    body = await json_body(request, state.settings.body_limit_bytes, REPLAY_FIELDS)
    wanted, dry_run = filter_in(body), optional_flag(body, "dry_run")
    async with principal.audited(
        state, Action.REPLAY_DEAD_LETTERS, subject_of(wanted, dry_run=dry_run)
    ):
        report = await service.replay(principal.workspace, wanted, dry_run=dry_run)
    return json_response(report.as_json() | {"dry_run": dry_run})


@router.post("/drop", openapi_extra=_body(DROP_FIELDS))
async def drop(
    request: Request, state: State, principal: Administrator, service: Service
) -> Response:
    """Mark dead letters as dealt with, without a replay. This cannot be undone."""
    body = await json_body(request, state.settings.body_limit_bytes, DROP_FIELDS)
    wanted, dry_run = filter_in(body), optional_flag(body, "dry_run")
    everything = optional_flag(body, "all")
    async with principal.audited(
        state, Action.DROP_DEAD_LETTERS, subject_of(wanted, dry_run=dry_run)
    ):
        report = await service.drop(
            principal.workspace, wanted, everything=everything, dry_run=dry_run
        )
    return json_response({"letters": report.letters, "rows": report.rows, "dry_run": dry_run})


def filter_in(body: dict[str, Any]) -> LetterFilter:
    """Return the filter in the body of a request. Raises LetterFilterMalformed."""
    given: dict[str, str | None] = {}
    for name in FILTERS:
        value = body.get(name)
        if value is not None and not isinstance(value, str):
            raise LetterFilterMalformed(f"`{name}` in the request body must be a string")
        given[name] = value
    return filter_of(**given)


def subject_of(wanted: LetterFilter, *, dry_run: bool = False) -> str:
    """Return what the audit log says about an order, without the reason, which may quote a row."""
    parts = [
        f"{name} {value}"
        for name, value in (
            ("dataset", wanted.dataset),
            ("source", wanted.source),
            ("sink", wanted.sink),
            ("since", wanted.since_ms),
            ("until", wanted.until_ms),
            ("reason", None if wanted.reason is None else "given"),
        )
        if value is not None
    ]
    return ", ".join(["dead letters", *parts, *(["dry run"] if dry_run else [])])


def _ms(name: str, text: str | None) -> int | None:
    """Return a time as ms since 1970; without a zone it is UTC. Raises LetterFilterMalformed."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as malformed:
        raise LetterFilterMalformed(
            f"`{name}` is `{text}`, and must be a time like 2026-01-31T12:00:00Z"
        ) from malformed
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
