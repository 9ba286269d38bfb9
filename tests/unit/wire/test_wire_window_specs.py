"""Aggregations of windowed groupbys come back when the pipeline function is run in the client's environment."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.graph.model import build
from fennel_core.graph.schemas import derive_pipeline
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.operators import Count, Emit, Session, WindowOp
from fennel_core.wire.window_specs import pipelines_to_recover, recovery_program, with_recovered

ROOT = Path(__file__).resolve().parents[3]
EXECUTOR_PYTHON = ROOT / ".venv-executor" / "bin" / "python"
FIFTEEN_MINUTES = 900_000_000


def request():
    return decode_sync_request((ROOT / "tests" / "golden" / "wire" / "operators.binpb").read_bytes())


def windows(r, dataset):
    return [o.kind for o in r.operators if o.dataset == dataset and isinstance(o.kind, WindowOp)]


def test_only_pipelines_that_may_have_lost_something_are_run():
    assert [p.dataset for p in pipelines_to_recover(request())] == ["Sessions"]


@pytest.mark.skipif(not EXECUTOR_PYTHON.exists(), reason="the client's environment is not installed")
def test_the_program_brings_the_specs_back():
    sent = request()
    pipelines = pipelines_to_recover(sent)
    done = subprocess.run(
        [str(EXECUTOR_PYTHON), "-c", recovery_program(sent, pipelines)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    recovered = with_recovered(sent, pipelines, done.stdout)
    session = Session(FIFTEEN_MINUTES)
    (kind,) = windows(recovered, "Sessions")
    assert kind.specs == (Count("orders", session, None, False, False, False),)
    assert kind.emit is Emit.EAGER
    assert windows(recovered, "Hourly") == windows(sent, "Hourly")
    g = build(recovered)
    (pipeline,) = g.pipelines_of("Sessions")
    assert derive_pipeline(g, pipeline)[g.root_of(pipeline).id].values == (Field("orders", Int()),)
    assert pipelines_to_recover(recovered) == ()


@pytest.mark.parametrize(
    "printed", ["", "no json", "[]", '[[{"emit": "never", "specs": []}]]', '[[{"emit": "eager", "specs": ["!"]}]]', "[[]]"]
)
def test_an_answer_that_does_not_fit_is_refused(printed):
    sent = request()
    with pytest.raises(UnsupportedValue, match="could not be recovered"):
        with_recovered(sent, pipelines_to_recover(sent), printed)


def test_a_pipeline_whose_inputs_are_elsewhere_cannot_be_run():
    sent = request()
    with pytest.raises(UnsupportedValue, match=r"reads \['Orders'\], which this commit does not have"):
        recovery_program(replace(sent, datasets=sent.datasets[1:]), pipelines_to_recover(sent))
