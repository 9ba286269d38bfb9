"""Settings of the running platform for processes of tests, passwords included."""

from typing import Final

SECRETS: Final = (
    "FENNEL_POSTGRES_DSN",
    "FENNEL_S3_SECRET_KEY",
    "FENNEL_AIRFLOW_PASSWORD",
    "FENNEL_ADMIN_TOKEN",
    "FENNEL_SECRETS_KEY_FILE",
)
ENV_COMMAND: Final = ("env", "--all", *SECRETS)
"""Arguments of `fennel-core`."""
