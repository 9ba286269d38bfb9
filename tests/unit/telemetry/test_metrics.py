"""The names that dashboards use are exactly the documented ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fennel_core.telemetry import metrics

DOCUMENTED = {
    "fennel_source_dataset_metrics": "gauge",
    "fennel_source_dataset_counter": "counter",
    "fennel_source_watermark_discarded_rows": "counter",
    "fennel_source_watermark_discarded_timestamp": "gauge",
    "fennel_request_counter": "counter",
    "fennel_request_latency_seconds": "histogram",
    "fennel_extract_features_counter": "counter",
    "fennel_extract_features_error_counter": "counter",
    "extract_features_latency_seconds": "histogram",
}


@pytest.mark.parametrize(("name", "kind"), DOCUMENTED.items())
def test_every_documented_name_is_there_with_its_type(name: str, kind: str) -> None:
    assert f"# TYPE {name} {kind}\n".encode() in metrics.render()


def test_only_counters_with_undocumented_names_are_rendered_with_the_suffix() -> None:
    metrics.REQUESTS.labels("/api/v1/query", "POST", "200").inc()
    metrics.counter("fennel_test_things", "Things.").inc(2)
    text = metrics.render()
    assert (
        b'\nfennel_request_counter{method="POST",path="/api/v1/query",status="200"} 1.0\n' in text
    )
    assert b"\nfennel_test_things_total 2.0\n" in text
    assert b"fennel_request_counter_total" not in text


def test_several_processes_add_up_to_one_page(tmp_path: Path) -> None:
    work = (
        "from fennel_core.telemetry import metrics as m\n"
        "m.DISCARDED_ROWS.labels('s', 'd').inc(3)\n"
        "m.SOURCE_DATASET.labels('s', 'd', 'event_timestamp_seconds').set(7)"
    )
    env = {**os.environ, metrics.MULTIPROCESS_VARIABLE: str(tmp_path)}
    root = Path(__file__).parents[3]
    for _ in range(2):
        subprocess.run([sys.executable, "-c", work], env=env, cwd=root, check=True)  # noqa: S603  # a program of this test, and no shell
    page = subprocess.run(
        [
            sys.executable,
            "-c",
            "from fennel_core.telemetry import metrics as m; print(m.render().decode())",
        ],
        env=env,
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert 'fennel_source_watermark_discarded_rows{dataset_name="d",source_name="s"} 6.0' in page
    assert (
        'fennel_source_dataset_metrics{dataset_name="d",metric="event_timestamp_seconds",'
        'source_name="s"} 7.0' in page
    )
