"""What must be done around a start, by name, so that the process table stays data; each step is
idempotent.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from fennel_core.apps.local import airflow, kafka, postgres, s3
from fennel_core.apps.local.host import Host
from fennel_core.apps.local.keys import Keys
from fennel_core.apps.local.layout import Layout
from fennel_core.settings.model import Settings


class Step(StrEnum):
    """The value is what the progress display says while it is being done."""

    MAKE_POSTGRES_CLUSTER = "making the database cluster"
    MAKE_DATABASES = "making and migrating databases"
    FORMAT_KAFKA = "formatting storage"
    CONFIGURE_S3 = "writing its configuration"
    MAKE_BUCKET = "making the bucket"
    WARM_AIRFLOW = "warming its task API"
    MIGRATE_AIRFLOW = "migrating Airflow's database"


@dataclass(frozen=True, slots=True)
class Machine:
    """All that steps and rows are made from."""

    settings: Settings
    layout: Layout
    keys: Keys
    host: Host


def carry_out(step: Step, machine: Machine) -> None:
    """Raises HostError, or what the technology's client raises, where it cannot be done."""
    settings, layout, keys, host = machine.settings, machine.layout, machine.keys, machine.host
    match step:
        case Step.MAKE_POSTGRES_CLUSTER:
            postgres.make_cluster(layout, keys, host)
            postgres.admit(settings, layout, host)
        case Step.MAKE_DATABASES:
            postgres.make_databases(settings, keys)
            postgres.migrate(settings)
        case Step.FORMAT_KAFKA:
            kafka.format_storage(settings, layout, keys, host)
        case Step.CONFIGURE_S3:
            s3.configure(settings, layout)
        case Step.MAKE_BUCKET:
            s3.make_bucket(settings)
        case Step.WARM_AIRFLOW:
            airflow.warm(settings)
        case Step.MIGRATE_AIRFLOW:
            airflow.migrate(settings, layout, keys)
        case unexpected:
            assert_never(unexpected)
