"""Settings of offline queries: training data as of the time of each row."""

from pydantic import Field
from pydantic_settings import BaseSettings


class OfflineSettings(BaseSettings):
    """How many are computed, where, and for how long their results are kept."""

    offline_queries_at_once: int = Field(
        2,
        gt=0,
        description="Offline queries of one workspace that are computed at a time; others wait.",
    )
    offline_inline_at_once: int = Field(
        2,
        gt=0,
        description="Offline queries of all workspaces that are computed at a time without "
        "Airflow; others wait. Each has a Spark driver with FENNEL_OFFLINE_MEMORY. With Airflow: "
        "the slots of the pool `fennel_offline`.",
    )
    offline_queries_queued: int = Field(
        100,
        gt=0,
        description="Offline queries of one workspace that have not ended. More are refused with "
        "status 429.",
    )
    offline_result_days: float = Field(
        7.0,
        gt=0,
        description="How long results of offline queries are kept on S3, days.",
    )
    offline_request_days: float = Field(
        90.0,
        gt=0,
        description="How long offline queries that have ended are listed, days; those whose "
        "results are still kept stay. The audit log keeps its events.",
    )
    offline_shared_buckets: tuple[str, ...] = Field(
        (),
        description="Buckets that offline queries of every workspace may read and write with the "
        "platform's S3 keys, as JSON: `input_s3` and `output_s3` without keys name one of them.",
    )
    offline_master: str = Field(
        "local[*,2]",
        min_length=1,
        description="Spark master of offline queries, also as Airflow's connection "
        "`spark_default`. A cluster needs this package and its settings on every node.",
    )
    offline_memory: str = Field(
        "2g",
        pattern=r"[1-9][0-9]*[mg]",
        description="Memory of the Spark driver of an offline query, as Spark reads it: with a "
        "local master all tasks sort in it, and spill to disk beyond it.",
    )
