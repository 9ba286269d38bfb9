"""How an error looks on the wire.

Theory. The public client raises whatever is not status 200. It reads a JSON body's `err_msg` only
when a header is spelt exactly `content-type: application/json`; in every other case it shows
`Server returned: <status>, <body>`, and that second form is what its published tests pin. So an
error is `text/plain` with the bare sentence as its body, and the stable code for programs travels
in `X-Fennel-Error-Code`. Callers that want JSON (`Accept: application/json`) get `{"err_msg",
"code"}`.

An exception nobody expected answers 500 `internal` with no detail: the text may hold a user's data
or a secret; the log has it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Send

from fennel_core.vocab.errors import (
    ApiError as ApiError,
)  # re-exported: servers import errors from here

CODE_HEADER: Final = "X-Fennel-Error-Code"
INTERNAL: Final = ApiError(
    500, "internal", "the server failed in a way nobody expected: its log says how"
)
_BY_STATUS: Final = {
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "media-type",
}


def body_of(error: ApiError, *, as_json: bool = False) -> bytes:
    """The bytes of the answer: the bare text, or `{"err_msg", "code"}`."""
    return (
        msgspec.json.encode({"err_msg": error.text, "code": error.code})
        if as_json
        else error.text.encode()
    )


def headers_of(error: ApiError, *, as_json: bool = False) -> list[tuple[bytes, bytes]]:
    """ASGI headers of the answer, without its length."""
    kind = b"application/json" if as_json else b"text/plain; charset=utf-8"
    headers = [(b"content-type", kind), (CODE_HEADER.lower().encode(), error.code.encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def wants_json(accept: str | None) -> bool:
    """Whether an `Accept` header asks for JSON by name (the client sends `*/*` or nothing, and must
    get text).
    """
    return accept is not None and "application/json" in accept.lower()


async def send_error(send: Send, error: ApiError, *, as_json: bool = False) -> None:
    """Answer `error` over raw ASGI."""
    body = body_of(error, as_json=as_json)
    headers = [*headers_of(error, as_json=as_json), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def response_of(error: ApiError, *, as_json: bool = False) -> Response:
    """`error` as a Starlette/FastAPI response."""
    response = Response(body_of(error, as_json=as_json), status_code=error.status)
    for name, value in headers_of(error, as_json=as_json):
        response.headers[name.decode()] = value.decode()
    return response


def install(app: FastAPI) -> None:
    """Make `app` answer ApiError, unknown paths, invalid bodies and unexpected exceptions in the
    one form above.
    """

    def answer(request: Request, error: ApiError) -> Response:
        return response_of(error, as_json=wants_json(request.headers.get("accept")))

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return answer(request, error)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(
            request,
            ApiError(
                error.status_code,
                _BY_STATUS.get(error.status_code, "http-error"),
                str(error.detail),
            ),
        )

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = "; ".join(
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
            for each in error.errors()
        )
        return answer(request, ApiError(422, "request-invalid", problems))

    async def unexpected(request: Request, error: Exception) -> Response:
        structlog.get_logger().error("request failed", path=request.url.path, exc_info=error)
        return answer(request, INTERNAL)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)
