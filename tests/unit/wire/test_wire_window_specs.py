"""Specs of windowed groupbys are extracted by running pipelines in the client's environment."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.graph.derived_schemas import derive_pipeline_schemas
from fennel_core.graph.entity_graph import build_graph
from fennel_core.graph.passes import validate
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import services_pb2
from fennel_core.wire.operators import Count, Emit, Session, WindowOp
from fennel_core.wire.window_specs import (
    extraction_program,
    insert_window_specs,
    pipelines_without_specs,
)

ROOT = Path(__file__).resolve().parents[3]
EXECUTOR_PYTHON = ROOT / ".venv-executor" / "bin" / "python"
FIFTEEN_MINUTES = 900_000_000
BODY = (ROOT / "tests" / "golden" / "wire" / "operators.binpb").read_bytes()


def windows(request, dataset):
    return [
        o.kind for o in request.operators if o.dataset == dataset and isinstance(o.kind, WindowOp)
    ]


def test_only_pipelines_that_may_lack_specs_are_run():
    sent = decode_sync_request(BODY)
    assert [p.dataset for p in pipelines_without_specs(sent)] == ["Sessions"]
    assert (
        extraction_program(
            replace(sent, pipelines=tuple(p for p in sent.pipelines if p.dataset != "Sessions"))
        )
        is None
    )


@pytest.mark.skipif(
    not EXECUTOR_PYTHON.exists(), reason="the client's environment is not installed"
)
def test_the_programs_output_adds_the_specs_to_the_commits_bytes():
    sent = decode_sync_request(BODY)
    program = extraction_program(sent)
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [str(EXECUTOR_PYTHON), "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    body = insert_window_specs(BODY, pipelines_without_specs(sent), done.stdout)
    specs_known = decode_sync_request(body)
    (kind,) = windows(specs_known, "Sessions")
    assert kind.specs == (Count("orders", Session(FIFTEEN_MINUTES), None, False, False, False),)
    assert (kind.emit, kind.specs_known) == (Emit.EAGER, True)
    assert windows(specs_known, "Hourly") == windows(sent, "Hourly")
    assert extraction_program(specs_known) is None
    g = build_graph(specs_known)
    (pipeline,) = g.pipelines_of("Sessions")
    assert derive_pipeline_schemas(g, pipeline)[g.root_of(pipeline).id].values == (
        Field("orders", Int()),
    )
    assert validate(g, None) == ()


def recovered_body(emit="final"):
    sent = decode_sync_request(BODY)
    return insert_window_specs(
        BODY, pipelines_without_specs(sent), f'[[{{"emit": "{emit}", "specs": []}}]]'
    )


def test_added_specs_survive_copying_of_messages():
    copied = services_pb2.SyncRequest()
    copied.operators.extend(services_pb2.SyncRequest.FromString(recovered_body()).operators)
    (kind,) = windows(decode_sync_request(copied.SerializeToString()), "Sessions")
    assert (kind.emit, kind.specs_known) == (Emit.FINAL, True)


def test_only_windowed_groupbys_change():
    before, after = decode_sync_request(BODY), decode_sync_request(recovered_body())
    assert replace(after, operators=()) == replace(before, operators=())
    changed = [o for o, old in zip(after.operators, before.operators, strict=True) if o != old]
    assert [(o.dataset, type(o.kind)) for o in changed] == [("Sessions", WindowOp)]


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "no json",
        "[]",
        '[[{"emit": "never", "specs": []}]]',
        '[[{"emit": "eager", "specs": ["!"]}]]',
        '[[{"emit": "eager"}]]',
        "[[]]",
    ],
)
def test_output_that_does_not_match_the_pipelines_is_rejected(printed):
    with pytest.raises(UnsupportedValue, match="could not be extracted"):
        insert_window_specs(BODY, pipelines_without_specs(decode_sync_request(BODY)), printed)


def test_inputs_committed_on_the_branch_are_used_and_missing_ones_ignored():
    sent = decode_sync_request(BODY)
    alone = replace(sent, datasets=sent.datasets[1:])
    assert pipelines_without_specs(alone) == ()
    assert extraction_program(alone, sent) == extraction_program(sent)
