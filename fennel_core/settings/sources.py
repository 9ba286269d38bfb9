"""Settings of the streaming sources, which read topics and files of users."""

from pydantic import Field, SecretStr

from fennel_core.settings.sinks import SinkSettings


class SourceSettings(SinkSettings):
    """How often, how much and on how many cores they read, and what their process writes to."""

    source_trigger_ms: int = Field(
        1_000,
        ge=100,
        description="How often the streaming sources look for messages, ms. Ten idle sources "
        "cost 4% of a core at 1 s, and 1% at 5 s.",
    )
    source_batch_messages: int = Field(
        100_000,
        gt=0,
        description="Messages of one batch over all partitions of a source; a source with a long "
        "backlog gives way to the others between batches.",
    )
    source_stale_s: float = Field(
        300.0,
        gt=0,
        description="A stream in which something was left unread for so many seconds all the while "
        "is an alarm of `status`.",
    )
    source_page_rows: int = Field(
        500_000,
        gt=0,
        description="Rows of a table that one query reads: a page. Between pages a run reports "
        "its progress, and gives the database back its old row versions.",
    )
    source_runs_at_once: int = Field(
        2,
        gt=0,
        description="Runs of scheduled sources at once, each with a Spark driver; others wait for "
        "their turn. With Airflow, the slots of its pool `fennel_sources`: a run that is started "
        "and waits 300 s for a slot is taken for lost.",
    )
    source_run_s: float = Field(
        300.0,
        gt=0,
        description="A run of a scheduled source ends after so many seconds and a page, and goes "
        "on after others that wait. Shorter turns cost more starts of Spark, 10 CPU-seconds each.",
    )
    change_engine_mib: int = Field(
        512,
        ge=128,
        description="Heap of the JVM that reads the changes of databases, MiB. It is started with "
        "the first such source; each has up to 16 MiB of changes in memory.",
    )
    source_workers: int = Field(
        2,
        gt=0,
        description="Concurrent Spark tasks of the streaming sources, one Python process each.",
    )
    source_roles: tuple[str, ...] = Field(
        (),
        description="ARNs of the roles of AWS that sources of every workspace may be read with, as "
        "JSON. The platform assumes them with `fennel-` and the workspace as the external id.",
    )
    aws_access_key: str = Field(
        "",
        description="Access key of the user that assumes the roles of Kinesis sources; empty: what "
        "AWS gives to the machine or its environment.",
    )
    aws_secret_key: SecretStr = Field(SecretStr(""), description="Secret key of that user.")
    kinesis_endpoint: str = Field(
        "", description="URL of Kinesis, as a VPC endpoint; empty: that of the stream's region."
    )
    sts_endpoint: str = Field(
        "", description="URL of STS, as a VPC endpoint; empty: that of the stream's region."
    )
    sink_shared_buckets: tuple[str, ...] = Field(
        (),
        description="Buckets that sinks of every workspace may write to with the platform's S3 "
        "keys, as JSON: the client gives a sink of S3 no keys of its own.",
    )
    source_shared_buckets: tuple[str, ...] = Field(
        (),
        description="Buckets that sources of every workspace may read with the platform's S3 keys, "
        "as JSON: a connector of S3 without keys names one of them.",
    )
