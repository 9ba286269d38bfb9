"""Read tables that are sources of datasets, each in a task of its own, with Spark on the connection
`spark_default`. The definition server starts a run when sources are due. See docs/connectors.md.
"""

from airflow.sdk import dag
from fennel_airflow.factory import SCHEDULED_SOURCES
from fennel_airflow.spark_tasks import read_tables
from fennel_airflow.tasks import due_sources


@dag(**SCHEDULED_SOURCES)
def scheduled_sources():
    read_tables(due_sources())


scheduled_sources()
