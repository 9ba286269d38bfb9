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


def test_other_texts_are_cut() -> None:
    assert reason_of("x" * 10_000) == "x" * REASON_CHARS
