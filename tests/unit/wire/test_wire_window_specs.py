"""Aggregations of windowed groupbys come back when the pipeline function is run in the client's
environment.
"""

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


def test_only_pipelines_that_may_have_lost_something_are_run():
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
def test_the_program_brings_the_specs_back_into_the_commits_bytes():
    sent = decode_sync_request(BODY)
    program = extraction_program(sent)
    done = subprocess.run(
        [str(EXECUTOR_PYTHON), "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    body = insert_window_specs(BODY, pipelines_without_specs(sent), done.stdout)
    recovered = decode_sync_request(body)
    (kind,) = windows(recovered, "Sessions")
    assert kind.specs == (Count("orders", Session(FIFTEEN_MINUTES), None, False, False, False),)
    assert (kind.emit, kind.recovered) == (Emit.EAGER, True)
    assert windows(recovered, "Hourly") == windows(sent, "Hourly")
    assert extraction_program(recovered) is None
    g = build_graph(recovered)
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


def test_what_was_recovered_survives_copying_of_messages():
    copied = services_pb2.SyncRequest()
    copied.operators.extend(services_pb2.SyncRequest.FromString(recovered_body()).operators)
    (kind,) = windows(decode_sync_request(copied.SerializeToString()), "Sessions")
    assert (kind.emit, kind.recovered) == (Emit.FINAL, True)


def test_nothing_but_the_windows_changes():
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
def test_an_answer_that_does_not_fit_is_refused(printed):
    with pytest.raises(UnsupportedValue, match="could not be recovered"):
        insert_window_specs(BODY, pipelines_without_specs(decode_sync_request(BODY)), printed)


def test_inputs_that_stand_on_the_branch_are_found_and_missing_ones_left_to_validation():
    sent = decode_sync_request(BODY)
    alone = replace(sent, datasets=sent.datasets[1:])
    assert pipelines_without_specs(alone) == ()
    assert extraction_program(alone, sent) == extraction_program(sent)
