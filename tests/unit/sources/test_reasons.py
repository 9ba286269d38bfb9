"""The error of a worker is found in the text that Spark makes of it."""

from fennel_core.sources.spark import REASON_CHARS, reason_of

TEXT = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function
Traceback (most recent call last):
  File "worker.py", line 1, in main
fennel_core.sources.errors.StreamReplaced: Kafka topic `orders`[1] was read from `a`

\tat org.apache.spark.api.python.BasePythonRunner (PythonRunner.scala:1)
"""


def test_the_last_line_of_a_traceback_is_the_reason() -> None:
    assert reason_of(TEXT) == "Kafka topic `orders`[1] was read from `a`"


FAILED = """[STREAM_FAILED] Query [id = c0126490] terminated with exception: the topic is gone
=== Streaming Query ===
Identifier: t12d9f35d.raw.orders.1 [id = c0126490-17f0-4fc7-971f-ccc5fd91f9af]
Current State: ACTIVE
"""


def test_the_description_of_a_query_is_no_reason() -> None:
    assert reason_of(FAILED) == FAILED.splitlines()[0]


def test_other_texts_are_cut() -> None:
    assert reason_of("x" * 10_000) == "x" * REASON_CHARS
