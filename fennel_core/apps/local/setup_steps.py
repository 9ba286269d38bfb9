"""Setup steps around a start, by name, so that the service table is plain data.

Each step is idempotent.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from fennel_core.apps.local import airflow, kafka, postgres, s3
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.platform_keys import PlatformKeys
from fennel_core.settings.model import Settings


class SetupStep(StrEnum):
    """A setup step; its value is the text that the start display shows while it runs."""

    MAKE_POSTGRES_CLUSTER = "making the database cluster"
    MAKE_DATABASES = "making and migrating databases"
    FORMAT_KAFKA = "formatting storage"
    CONFIGURE_S3 = "writing its configuration"
    MAKE_BUCKET = "making the bucket"
    WARM_AIRFLOW = "warming its task API"
    MIGRATE_AIRFLOW = "migrating Airflow's database"


@dataclass(frozen=True, slots=True)
class PlatformContext:
    """Inputs of the service table and of the setup steps."""

    settings: Settings
    layout: FileLayout
    keys: PlatformKeys
    host: HostEnvironment


def run_setup_step(step: SetupStep, context: PlatformContext) -> None:
    """Run a setup step; raises SetupFailed, or the error of the system's client."""
    settings, layout, keys, host = context.settings, context.layout, context.keys, context.host
    match step:
        case SetupStep.MAKE_POSTGRES_CLUSTER:
            postgres.make_cluster(layout, keys, host)
            postgres.write_client_authentication(settings, layout, host)
        case SetupStep.MAKE_DATABASES:
            postgres.make_databases(settings, keys)
            postgres.migrate(settings)
        case SetupStep.FORMAT_KAFKA:
            kafka.format_storage(settings, layout, keys, host)
        case SetupStep.CONFIGURE_S3:
            s3.configure(settings, layout)
        case SetupStep.MAKE_BUCKET:
            s3.make_bucket(settings)
        case SetupStep.WARM_AIRFLOW:
            airflow.warm(settings)
        case SetupStep.MIGRATE_AIRFLOW:
            airflow.migrate(settings, layout, keys)
        case unexpected:
            assert_never(unexpected)
