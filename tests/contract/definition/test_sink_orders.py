"""Orders about sinks over the API of the definition server."""

from __future__ import annotations

import httpx

from fennel_core.definition.routes import API


async def test_orders_about_sinks_are_audited_and_name_what_is_wrong(
    client: httpx.AsyncClient,
) -> None:
    assert (await client.get(f"{API}/sinks?branch=none")).json() == {"sinks": []}
    for order in ("pause", "resume"):
        refused = await client.post(f"{API}/sinks/{order}", json={"sink": "hooks/rows"})
        code = refused.headers["x-fennel-error-code"]
        assert (refused.status_code, code) == (404, "sink-unknown")
        assert "no sink `hooks/rows` in this workspace; its sinks: none" in refused.text
    body = {"sink": "hooks/rows", "to": "earliest"}
    refused = await client.post(f"{API}/sinks/rewind", json=body)
    assert refused.headers["x-fennel-error-code"] == "sink-unknown"
    wrong = await client.post(f"{API}/sinks/rewind", json=body | {"dry_run": "yes"})
    assert (wrong.status_code, "`dry_run`" in wrong.text) == (400, True)
    events = (await client.get(f"{API}/audit")).json()["events"]
    assert {(e["action"], e["subject"], e["outcome"]) for e in events} >= {
        ("resume-sink", "sink hooks/rows", "sink-unknown"),
        ("pause-sink", "sink hooks/rows", "sink-unknown"),
        ("rewind-sink", "sink hooks/rows, to earliest", "sink-unknown"),
    }
