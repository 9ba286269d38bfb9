"""Every limit, address and switch of the platform, each with its unit and its reason.

All settings are in one model (with parts in other modules of this package), so that an operator can
see them all, and `FENNEL_<NAME>` in the environment changes a setting for every process. The
environment is read when `Settings()` is called, never at import; neither disk nor network is
touched. Two things would break this: a process that reads `os.environ` itself, and a package with a
private constant for a limit that an operator may need to change.

Example: `FENNEL_LEASE_MS=20000` makes `Settings().lease_ms == 20_000` in every process.

Passwords and tokens are `SecretStr`: they print as stars. Read them with `.get_secret_value()` only
where they are sent.
"""

from enum import StrEnum
from typing import Final

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fennel_core.settings.http import HttpSettings, SecuritySettings
from fennel_core.settings.integrity import IntegritySettings
from fennel_core.settings.offline import OfflineSettings
from fennel_core.settings.paths import PathSettings
from fennel_core.settings.sources import SourceSettings

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
DESTROY_GRACE_S: Final = 86_400
"""A day: a rollback after a night's sleep still recomputes nothing."""
HOUR_MS: Final = 3600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS

ENV_PREFIX: Final = "FENNEL_"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared, never bound


class Orchestrator(StrEnum):
    """Runner of a commit's steps: Airflow's DAG or the definition server, with the same code."""

    AIRFLOW = "airflow"
    INLINE = "inline"


class AddressSettings(BaseSettings):
    """Where each service listens. By default everything binds to loopback."""

    host: str = Field(
        "127.0.0.1",
        description="Address that every server binds to. Loopback by default, so that nothing is "
        "reachable from outside by accident.",
    )
    published_host: str | None = Field(
        None,
        description="Containers only: the host's address on which their ports are published. "
        "Unset: `host`.",
    )
    reach_by_name: bool = Field(
        False,
        description="Containers only: services reach each other by name instead of at `host`.",
    )
    query_port: int = Field(
        7400,
        gt=0,
        lt=65536,
        description="Query server, which is also the API gateway.",
    )
    query_metrics_port: int = Field(
        default_factory=lambda given: _beside(int(given["query_port"])),
        gt=0,
        lt=65536,
        description="Metrics of the query server, which users do not reach; five above its port "
        "unless set.",
    )
    definition_port: int = Field(
        7401,
        gt=0,
        lt=65536,
        description="Definition server: commits, branches, secrets, workspaces.",
    )
    ingest_port: int = Field(7402, gt=0, lt=65536, description="Ingest server: `log` and `erase`.")
    engine_port: int = Field(
        7403, gt=0, lt=65536, description="Health and metrics of the engine's driver."
    )
    history_port: int = Field(
        default_factory=lambda given: int(given["engine_port"]) + 1,
        gt=0,
        lt=65536,
        description="Health and metrics of the history writer; one above the engine's unless set.",
    )
    sources_port: int = Field(
        default_factory=lambda given: int(given["engine_port"]) + 3,
        gt=0,
        lt=65536,
        description="Health and metrics of the streaming sources; three above the engine's "
        "unless set.",
    )
    postgres_port: int = Field(7410, gt=0, lt=65536, description="The local Postgres server.")
    kafka_port: int = Field(7411, gt=0, lt=65536, description="The local Kafka broker (clients).")
    kafka_controller_port: int = Field(
        7413, gt=0, lt=65536, description="The local Kafka broker's KRaft controller listener."
    )
    s3_port: int = Field(7412, gt=0, lt=65536, description="The local S3 endpoint.")
    airflow_port: int = Field(
        7480, gt=0, lt=65536, description="Airflow's web server and REST API."
    )

    def address_of(self, service: str) -> str:
        """Return the address at which other services reach the service of that name."""
        return service if self.reach_by_name else self.own_address

    @property
    def broker_address(self) -> str:
        """The address of the bundled Kafka broker, which has no authentication.

        Whatever `host` says, it is for this machine or, in containers, for their network only.
        """
        return "kafka" if self.reach_by_name else "127.0.0.1"

    @property
    def own_address(self) -> str:
        """The address at which a process reaches its own port."""
        return "127.0.0.1" if self.host in EVERY_ADDRESS else self.host

    @property
    def users_address(self) -> str:
        """The address at which users on this machine reach the API and Airflow."""
        return (
            self.own_address
            if self.published_host is None or self.published_host in EVERY_ADDRESS
            else self.published_host
        )

    @property
    def only_on_loopback(self) -> bool:
        """Whether servers are reachable from this machine only.

        A published address replaces `host` only if `host` is a wildcard: a server bound to one
        network address is reachable there in any case.
        """
        bound = (
            self.published_host
            if self.published_host is not None and self.host in EVERY_ADDRESS
            else self.host
        )
        return {bound, self.published_host or bound} <= LOOPBACK

    @property
    def airflow_pages(self) -> str:
        """Airflow's address for browsers; the platform itself uses `airflow_url`."""
        return f"http://{self.users_address}:{self.airflow_port}"

    @property
    def definition_url(self) -> str:
        return f"http://{self.address_of('definition')}:{self.definition_port}"

    @property
    def ingest_url(self) -> str:
        return f"http://{self.address_of('ingest')}:{self.ingest_port}"


def _beside(port: int) -> int:
    """Return a port next to another one."""
    return port + 5 if port + 5 < 65536 else port - 5


class BackendSettings(BaseSettings):
    """Addresses and credentials of Postgres, Kafka, S3 and Airflow, local or remote."""

    postgres_dsn: SecretStr = Field(
        SecretStr("postgresql://fennel@127.0.0.1:7410/fennel"),
        description="Connection string of the platform's database; secret because it contains the "
        "password.",
    )
    kafka_bootstrap: str = Field(
        "127.0.0.1:7411", description="`host:port[,host:port]` of the Kafka brokers."
    )
    s3_endpoint: str = Field(
        "http://127.0.0.1:7412",
        description="S3 endpoint URL; the local server uses path-style addresses.",
    )
    s3_region: str = Field(
        "us-east-1",
        description="Region for request signatures; local servers ignore it, Spark requires one.",
    )
    s3_bucket: str = Field(
        "fennel",
        min_length=3,
        description="Bucket for snapshots and history (at least three letters).",
    )
    s3_prefix: str = Field(
        "",
        description="First part of every key in the bucket, so that several installations can "
        "share it; each needs its own. Ends with `/`, like `staging/`, or is empty.",
        pattern=r"^([A-Za-z0-9._-]+/)*$",
    )
    s3_access_key: str = Field("fennel", description="Access key of the bucket's user.")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="Secret key of the bucket's user.")
    airflow_url: str = Field(
        "http://127.0.0.1:7480", description="Base URL of Airflow's API (`/api/v2` is appended)."
    )
    airflow_user: str = Field(
        "admin",
        description="Airflow user, for your login and for the definition server's requests.",
    )
    airflow_password: SecretStr = Field(
        SecretStr(""), description="Password of the Airflow user, generated at the first start."
    )
    orchestrator: Orchestrator = Field(
        Orchestrator.AIRFLOW,
        description="`airflow`, or `inline` to run a commit's steps in the definition server.",
    )


class LimitSettings(BaseSettings):
    """Limits and intervals. They affect cost and latency, never a result."""

    partitions: int = Field(
        4,
        gt=0,
        le=128,
        description="Partitions of every topic and job of a workspace, fixed by its first commit: "
        "a change affects new workspaces only. At most one per key group; the default is twice the "
        "number of slots, to spread load.",
    )
    engines: int = Field(
        1,
        ge=1,
        le=8,
        description="Engines that `up` starts on this machine. Number n is called `engine-n` and "
        "its port is 20 * (n - 1) above FENNEL_ENGINE_PORT.",
    )
    engine_slots: int = Field(
        2,
        gt=0,
        description="Long-lived Spark tasks that host job runners: one Python process and one "
        "core each.",
    )
    engine_spare_slots: int = Field(
        1,
        ge=0,
        description="Spark slots reserved for backfills and drills, so that stuck runners cannot "
        "starve them.",
    )
    backfill_from_rows: int = Field(
        500_000,
        ge=0,
        description="Rows of history above which a Spark batch backfills a new job partition. "
        "Below, the live path is as fast, and is used unless the log's first records have "
        "expired.",
    )
    lease_ms: int = Field(
        10_000,
        gt=0,
        description="Lifetime of a slot's lease, ms. Longer: partitions stall after a crash. "
        "Shorter: slots that only pause lose their partitions.",
    )
    transaction_timeout_ms: int = Field(
        10_000,
        ge=5_000,
        description="Kafka aborts an open transaction after this, ms: bounds how long a frozen "
        "process stalls readers. At least half of the 10 s after which brokers look for such "
        "transactions: `purge` waits six time-outs for requests that ingest begins within three.",
    )
    kafka_retention_ms: int = Field(
        7 * DAY_MS, gt=0, description="How long topics keep messages, ms. History keeps older ones."
    )
    dead_letter_retention_ms: int = Field(
        30 * DAY_MS, gt=0, description="How long new dead-letter topics keep rows, ms."
    )
    history_before_deletion: bool = Field(
        True,
        description="Delete a dataset's messages only if history on S3 contains them. Off: delete "
        "by age alone, for platforms without history.",
    )
    retention_alarm_percent: int = Field(
        80,
        gt=0,
        lt=100,
        description="A message that is still needed raises an alarm at this share of its retention "
        "time: a snapshot should have covered it long before.",
    )
    retention_check_s: float = Field(
        60.0,
        gt=0,
        description="How often the definition server checks for needed messages, failed drills and "
        "differing lookups, s.",
    )
    kafka_replication: int = Field(
        1,
        gt=0,
        description="Replicas of each new topic: 1 for the local broker; a cluster should use 3, "
        "also for its transaction log.",
    )
    supervisor_poll_ms: int = Field(
        3_000,
        gt=0,
        description="How often a supervisor reads the registry without a notification, ms: bounds "
        "the delay if one is lost.",
    )
    iteration_rows: int = Field(
        10_000,
        gt=0,
        description="Maximum rows of one iteration, unless one message has more; bounds how long a "
        "write of state keeps a slot from its lease and its lookups.",
    )
    iteration_bytes: int = Field(
        8 * MIB, gt=0, description="Maximum bytes of one iteration; bounds memory per runner."
    )
    state_cache_bytes: int = Field(
        64 * MIB,
        gt=0,
        description="RocksDB block cache of one slot, bytes, shared by its job partitions.",
    )
    commit_threads: int = Field(
        8, gt=0, description="Threads per slot for Kafka commits, which block."
    )
    body_limit_bytes: int = Field(
        10 * MIB,
        gt=0,
        description="Maximum request body, bytes. A larger one is refused with status 413 "
        "before it is read into memory.",
    )
    log_rows: int = Field(
        100_000, gt=0, description="Maximum rows of a `log` request, one Kafka transaction."
    )
    query_workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes of the query server, which share its port: one core each. A parent "
        "process supervises them.",
    )
    query_helpers: int = Field(
        1,
        ge=0,
        le=64,
        description="Processes that serve queries and lookups of more than 200 rows, so that small "
        "ones do not wait; they share these requests. With 0 the query server serves them itself.",
    )
    query_rows: int = Field(
        10_000, gt=0, description="Maximum rows of a `query` request, answered in memory."
    )
    query_log_bytes: int = Field(
        64 * MIB,
        gt=0,
        description="Logged queries that one server process holds until Kafka has them, bytes of "
        "request and response; a workspace may use half. More are not logged, and counted.",
    )
    query_timeout_ms: int = Field(
        30_000, gt=0, description="A query, lookup or inspect that takes longer, ms, is cancelled."
    )
    lookup_timeout_ms: int = Field(
        2_000,
        gt=0,
        description="How long a query retries while a partition moves between slots, ms.",
    )
    commit_timeout_s: int = Field(
        120,
        gt=0,
        description="How long `commit` waits for its steps, s. Afterwards the response says that "
        "they continue in the background.",
    )
    warm_timeout_s: float = Field(
        60.0,
        gt=0,
        description="How long a commit waits for new jobs to catch up, s. Afterwards reads stay on "
        "the previous version and the reconcile loop switches them later.",
    )
    commit_lease_ms: int = Field(
        60_000,
        gt=0,
        description="A commit without progress for this long, ms, is finished or undone by the "
        "reconcile loop.",
    )
    destroy_grace_s: int | None = Field(
        None,
        ge=0,
        description="How long assets that no version needs any more are retained with their rows "
        "and state, so that a commit can revive them, s. Empty: a day, or 0 with development "
        "tokens. 0: they are destroyed at once, endpoints after they were counted again.",
    )
    allow_data_loss: bool | None = Field(
        None,
        description="Whether a commit that does not say so may destroy accepted rows. Empty: only "
        "with development tokens.",
    )
    commit_history_s: int = Field(
        30 * 86_400,
        ge=3600,
        description="How long the definitions of replaced versions, done ledger entries and rows "
        "of deleted assets are kept, s. The row of a commit with its plan stays.",
    )
    orphan_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="A topic that is in no ledger (an orphan) is deleted after this, ms: longer "
        "than any task may pause.",
    )
    snapshot_minutes: int = Field(
        10,
        gt=0,
        lt=60,
        description="Interval at which changed states are copied to S3, minutes: bounds the replay "
        "after a loss.",
    )
    snapshots_kept: int = Field(
        3,
        gt=0,
        description="Snapshots kept per job partition: an older one is used if the newest is "
        "corrupt.",
    )
    snapshot_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="A superseded snapshot is deleted after this, ms: a restore may be reading it.",
    )
    state_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="Local state of a job that the registry does not know is deleted after this, "
        "ms, and so is state that an earlier owner held when its successor started; that of a job "
        "that was removed, at once.",
    )
    garbage_items: int = Field(
        20,
        ge=0,
        description="Jobs or topics unknown to the database whose stored data one run may delete; "
        "more only if they are at most `garbage_percent` of all.",
    )
    garbage_percent: int = Field(
        20,
        ge=0,
        le=100,
        description="Share of all stored jobs or topics above which a run deletes nothing unknown "
        "to the database, because the database may be the wrong one. 100 allows everything.",
    )
    drill_schedule: str = Field(
        "0 3 * * *",
        description="When job partitions are drilled (a copy is rebuilt and compared): cron "
        "expression, UTC. Empty: never.",
    )
    drill_partitions: int = Field(
        8,
        gt=0,
        description="Job partitions per scheduled drill; those drilled longest ago come first.",
    )
    drill_bytes: int = Field(
        1024**3,
        gt=0,
        description="Scheduled drills skip larger states, bytes: a drill downloads and reads a "
        "whole state.",
    )
    history: bool = Field(
        True,
        description="Run the history writer, which copies dataset topics to S3 as Parquet. Off: "
        "data is kept in Kafka only.",
    )
    history_trigger_s: float = Field(
        30.0,
        gt=0,
        description="How often the history writer checks for work, s. Readers add the topic's "
        "tail, so no reader waits for it.",
    )
    history_file_records: int = Field(
        1_000,
        gt=0,
        description="Messages of a partition after which a file is written: small ones are slow.",
    )
    history_max_wait_s: float = Field(
        300.0,
        gt=0,
        description="A partition with fewer messages is written after this, s: far less than "
        "Kafka's retention.",
    )
    history_file_bytes: int = Field(
        32 * MIB,
        gt=0,
        description="Maximum message bytes of a file; a worker decodes one at a time in memory.",
    )
    history_batch_records: int = Field(
        20_000,
        gt=0,
        description="Messages of a batch over all partitions: bounds what a crash repeats.",
    )
    history_workers: int = Field(
        2, gt=0, description="Concurrent Spark tasks of the history writer, a Python process each."
    )
    history_maintenance_schedule: str = Field(
        "20 */6 * * *", description="When files of history are merged: cron, UTC. Empty: never."
    )
    history_retention: bool = Field(
        True, description="Remove rows of datasets older than `history`, for ever."
    )
    history_rewrite_bytes: int = Field(
        64 * 1024**3,
        gt=0,
        description="Bytes of files that a maintenance run searches for rows of erased keys, as "
        "many for expired ones, and as many for replaced versions of keyed datasets. What it "
        "rewrites is stored twice for 26 hours.",
    )
    query_log_history_s: int = Field(
        400 * 86_400,
        ge=0,
        description="How long history keeps logged queries, s, by the time of the query: a year "
        "and a month of training data. 0: for as long as the workspace exists.",
    )
    history_grace_ms: int = Field(
        HOUR_MS,
        gt=0,
        description="Orphaned objects and the history of deleted topics are deleted after this, "
        "ms: they may be in use until then.",
    )
    reconcile_interval_s: float = Field(
        2.0,
        gt=0,
        description="How often the reconcile loop checks for unfinished commits and pending "
        "deletions, s.",
    )
    barrier_timeout_s: float = Field(30.0, gt=0, description="Default deadline of a barrier, s.")
    executor_processes: int = Field(
        2,
        gt=0,
        le=256,
        description="Calls of user code that one workspace runs at a time, each in a pre-forked "
        "process. One process more is kept for the others (decision 0049).",
    )
    executor_time_limit_ms: int = Field(
        10_000,
        gt=0,
        description="A call of user code that takes longer, ms, is killed and its request fails.",
    )
    executor_memory_limit_bytes: int = Field(
        2 * GIB,
        gt=0,
        description="Address space a call may use beyond the warm process, bytes.",
    )
    executor_calls_per_process: int = Field(
        10_000,
        gt=0,
        description="Calls after which a process is replaced: bounds memory leaks of user code.",
    )
    shutdown_grace_s: float = Field(
        20.0, gt=0, description="How long a process may take to stop before it is killed, s."
    )


class Settings(
    AddressSettings,
    HttpSettings,
    BackendSettings,
    SecuritySettings,
    LimitSettings,
    OfflineSettings,
    IntegritySettings,
    SourceSettings,
    PathSettings,
):
    """All settings of one process, read from `FENNEL_*` at construction; immutable.

    `Settings(_env_file=path)` also reads the file that `up` writes; the environment
    takes precedence. Raises `pydantic.ValidationError`, which names every invalid variable.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True
    )

    @property
    def query_url(self) -> str:
        scheme = "http" if self.tls_certificate is None else "https"
        return f"{scheme}://{self.users_address}:{self.query_port}"

    @property
    def destroy_grace_ms(self) -> int:
        """The grace period of released assets, ms."""
        default_s = 0 if self.dev_tokens else DESTROY_GRACE_S
        return 1000 * (default_s if self.destroy_grace_s is None else self.destroy_grace_s)

    @property
    def data_loss_allowed(self) -> bool:
        """Whether commits that do not say so may destroy accepted rows."""
        return self.dev_tokens if self.allow_data_loss is None else self.allow_data_loss

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        if self.dev_tokens and not self.only_on_loopback:
            where = f"FENNEL_HOST={self.host}" + (
                f", FENNEL_PUBLISHED_HOST={self.published_host}" if self.published_host else ""
            )
            raise ValueError(
                f"FENNEL_DEV_TOKENS admits every caller and {where} is not loopback; turn one of "
                "them off"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("FENNEL_TLS_CERTIFICATE and FENNEL_TLS_KEY belong together; set both")
        return self
