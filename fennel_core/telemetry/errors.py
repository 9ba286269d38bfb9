"""Write errors as HTTP responses.

The public client raises every response whose status is not 200. It reads `err_msg` from a JSON body
only when a header is spelt exactly `content-type: application/json`; in all other cases it shows
`Server returned: <status>, <body>`, and its published tests check that form. So an error is
`text/plain` with the bare sentence as its body, and the stable code for programs is in
`X-Fennel-Error-Code`. Callers that accept JSON (`Accept: application/json`) get an object with
`err_msg` and `code`, and with `problems` if the error lists findings of validation.

An unexpected exception is a 500 with the code `internal` and no detail, because its text may hold a
user's data or a secret; the server log has the detail.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Send

# Re-exported: servers import errors from here.
from fennel_core.vocab.errors import ApiError as ApiError

CODE_HEADER: Final = "X-Fennel-Error-Code"
SOON_S: Final = 1
"""`Retry-After` of every 503: a lost connection or a moving partition is a matter of seconds."""
INTERNAL: Final = ApiError(500, "internal", "internal error; see the server log")
_BY_STATUS: Final = {
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "media-type",
}


def body_of(error: ApiError, *, as_json: bool = False) -> bytes:
    """Return the response body: the bare text, or `{"err_msg", "code", "problems"?}`."""
    # The text may quote a request, and JSON can express text that UTF-8 cannot (half a pair).
    text = error.text.encode(errors="backslashreplace")
    if not as_json:
        return text
    body: dict[str, object] = {"err_msg": text.decode(), "code": error.code}
    if error.problems:
        body["problems"] = error.problems
    return msgspec.json.encode(body)


def headers_of(error: ApiError, *, as_json: bool = False) -> list[tuple[bytes, bytes]]:
    """Return the ASGI headers of the response, without its length."""
    kind = b"application/json" if as_json else b"text/plain; charset=utf-8"
    headers = [(b"content-type", kind), (CODE_HEADER.lower().encode(), error.code.encode())]
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.status == 503:
        retry_after_s = SOON_S
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def wants_json(accept: str | None) -> bool:
    """Return whether an `Accept` header names JSON.

    The client sends `*/*` or nothing, and must get text.
    """
    return accept is not None and "application/json" in accept.lower()


async def send_error(send: Send, error: ApiError, *, as_json: bool = False) -> None:
    """Send `error` over raw ASGI."""
    body = body_of(error, as_json=as_json)
    headers = [*headers_of(error, as_json=as_json), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def response_of(error: ApiError, *, as_json: bool = False) -> Response:
    """Return `error` as a Starlette/FastAPI response."""
    response = Response(body_of(error, as_json=as_json), status_code=error.status)
    for name, value in headers_of(error, as_json=as_json):
        response.headers[name.decode()] = value.decode()
    return response


def install(app: FastAPI) -> None:
    """Make `app` send every error in the form above.

    This covers `ApiError`, unknown paths, invalid bodies and unexpected exceptions.
    """

    def respond(request: Request, error: ApiError) -> Response:
        return response_of(error, as_json=wants_json(request.headers.get("accept")))

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return respond(request, error)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return respond(
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
        return respond(request, ApiError(422, "request-invalid", problems))

    async def unexpected(request: Request, error: Exception) -> Response:
        structlog.get_logger().error("request failed", path=request.url.path, exc_info=error)
        return respond(request, INTERNAL)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)
