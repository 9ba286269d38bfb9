"""Requests that a client could send by mistake or with intent: valid ones with a few changes.

`mutated` takes a valid request and changes one to three things: a field is dropped, added or given
a value of another type, size or range; the body is cut, or a byte of it is changed; a header or the
path is unusual. `random` decides everything, so a seed repeats a run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

API: Final = "/api/v1"
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    2**63,
    -(2**70),
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x00",
    "\ud800",
    "🦊" * 50,
    "x" * 100_000,
    "2026-13-45",
    [],
    [[]],
    {},
    {"": None},
    [None] * 1000,
)
ODD_HEADERS: Final = ("", "x" * 5000, "../..", "main\t", "ä", "%00", "a/b/c", "Bearer", "0")
DEEP: Final = 2000


@dataclass(frozen=True, slots=True)
class FuzzRequest:
    """One HTTP request. `body`: JSON value, or bytes as they are."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes | None:
        """The bytes to send."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode(errors="surrogatepass")


def valid_requests(commit: bytes, workspace: str) -> list[FuzzRequest]:
    """Return one valid request of every route that takes input."""
    at = "2026-01-01T00:00:00"
    rows = {"uid": [1, 2], "city": ["a", "b"], "at": [at, at]}
    return [
        FuzzRequest("POST", f"{API}/log", _log("customers", rows)),
        FuzzRequest("POST", f"{API}/log", _log("customers", [{"uid": 1, "city": "a", "at": at}])),
        FuzzRequest("POST", f"{API}/query", _query({"Shopper.uid": [1, 2]})),
        FuzzRequest("POST", f"{API}/query", _query([{"Shopper.uid": 1}])),
        FuzzRequest(
            "POST",
            f"{API}/dataset/Customer/lookup",
            {"keys": [{"uid": 1}], "fields": ["city"], "timestamps": [at]},
        ),
        FuzzRequest("POST", f"{API}/dataset/Customer/erase", {"erase_keys": [{"uid": 999}]}),
        FuzzRequest("GET", f"{API}/dataset/Customer/inspect?n=3"),
        FuzzRequest("POST", f"{API}/barrier", {"timeout_s": 1}),
        FuzzRequest("POST", f"{API}/init", {"clone_from": "main"}, {"X-FENNEL-BRANCH": "other"}),
        FuzzRequest("POST", f"{API}/delete", None, {"X-FENNEL-BRANCH": "other"}),
        FuzzRequest("GET", f"{API}/branch/list"),
        FuzzRequest("GET", f"{API}/xray?datasets=Customer&properties=name"),
        FuzzRequest("GET", f"{API}/lineage"),
        FuzzRequest("POST", f"{API}/query_offline", _query_offline()),
        FuzzRequest("GET", f"{API}/query_offline/list?n=3"),
        FuzzRequest("GET", f"{API}/query_offline/status?request_id=some"),
        FuzzRequest("POST", f"{API}/query_offline/cancel?request_id=some", {}),
        FuzzRequest("GET", f"{API}/query_offline/file?request_id=some&number=0"),
        FuzzRequest("POST", f"{API}/secret/some", {"value": "x"}),
        FuzzRequest("PATCH", f"{API}/secret/some", {"value": "y"}),
        FuzzRequest("GET", f"{API}/secret/some"),
        FuzzRequest("DELETE", f"{API}/secret/some"),
        FuzzRequest("GET", f"{API}/workspaces"),
        FuzzRequest("POST", f"{API}/workspaces", {"name": f"{workspace}-more"}),
        FuzzRequest("POST", f"{API}/workspaces/{workspace}/tokens"),
        FuzzRequest("DELETE", f"{API}/workspaces/{workspace}-more"),
        FuzzRequest("GET", f"{API}/operations/needed"),
        FuzzRequest("GET", f"{API}/operations/drills"),
        FuzzRequest("GET", "/status"),
        FuzzRequest("POST", f"{API}/commit?preview=true", commit),
        FuzzRequest("POST", f"{API}/commit", commit, {"X-Fennel-Orchestrator": "inline"}),
    ]


def mutated(luck: random.Random, request: FuzzRequest) -> FuzzRequest:
    """Return the request with one to three changes."""
    for _ in range(luck.randrange(1, 4)):
        change = luck.choice((_change_body, _change_body, _change_body, _change_rest))
        request = change(luck, request)
    return request


def _log(endpoint: str, data: Any) -> dict[str, Any]:
    return {"webhook": "chaos", "endpoint": endpoint, "data": data}


def _query(data: Any) -> dict[str, Any]:
    return {
        "inputs": ["Shopper.uid"],
        "outputs": ["Shopper.spent"],
        "data": data,
        "log": False,
        "workflow": "w",
    }


def _query_offline() -> dict[str, Any]:
    """Return a request that is checked in full and refused, so that no Spark job starts."""
    return {
        "input_features": ["Shopper.uid"],
        "output_features": ["Shopper.spent"],
        "input": {"Pandas": {"Shopper.uid": [1, "x"], "at": ["2026-01-01 00:00:00", "NaT"]}},
        "timestamp_column": "at",
        "s3_output": None,
        "use_v2": True,
        "workflow": "w",
    }


def _change_body(luck: random.Random, request: FuzzRequest) -> FuzzRequest:
    if isinstance(request.body, bytes) and request.body:
        return replace(request, body=_changed_bytes(luck, request.body))
    match luck.randrange(12):
        case 0:
            return replace(request, body=(request.content or b"{}")[: luck.randrange(1, 40)])
        case 1:
            return replace(request, body=b'{"a":' * DEEP)
        case 2:
            return replace(request, body=_changed_bytes(luck, request.content or b"{}"))
        case 3:
            return replace(request, body=luck.choice((b"", b"null", b"[]", b"\xff\xfe", b"1e999")))
        case _:
            return replace(request, body=_changed_value(luck, request.body))


def _changed_bytes(luck: random.Random, body: bytes) -> bytes:
    some = bytearray(body)
    for _ in range(luck.randrange(1, 5)):
        at = luck.randrange(len(some))
        match luck.randrange(3):
            case 0:
                some[at] = luck.randrange(256)
            case 1:
                some.insert(at, luck.randrange(256))
            case _ if len(some) > 1:
                del some[at]
            case _:
                pass
    return bytes(some)


def _changed_value(luck: random.Random, value: Any) -> Any:
    """Return the JSON value with one place changed; the value itself stays as it is."""
    if isinstance(value, dict) and value and luck.random() < 0.85:
        name = luck.choice(sorted(value))
        match luck.randrange(6):
            case 0:
                return {key: item for key, item in value.items() if key != name}
            case 1:
                return value | {luck.choice(("more", "", "log", "\x00", name.upper())): 1}
            case 2:
                return value | {name: luck.choice(ODD)}
            case _:
                return value | {name: _changed_value(luck, value[name])}
    if isinstance(value, list) and value and luck.random() < 0.85:
        at = luck.randrange(len(value))
        match luck.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], _changed_value(luck, value[at]), *value[at + 1 :]]
    return luck.choice(ODD)


def _change_rest(luck: random.Random, request: FuzzRequest) -> FuzzRequest:
    match luck.randrange(5):
        case 0:
            words = request.path.split("/")
            words[luck.randrange(1, len(words))] = quote(
                luck.choice(("", "..", "ä", "\n", "x" * 300))
            )
            return replace(request, path="/".join(words))
        case 1:
            odd = quote(luck.choice(("-1", "0", "1e9", "", "true", "[]", "\x00")))
            return replace(request, path=f"{request.path.partition('?')[0]}?n={odd}&preview={odd}")
        case 2:
            method = luck.choice(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
            return replace(request, method=method)
        case 3:
            name = luck.choice(
                ("X-FENNEL-BRANCH", "Authorization", "Content-Type", "Accept", "Content-Encoding")
            )
            return replace(request, headers={**request.headers, name: luck.choice(ODD_HEADERS)})
        case _:
            return replace(request, headers={**request.headers, "X-FENNEL-BRANCH": "nowhere"})
