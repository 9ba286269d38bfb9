"""Remove rows of erased keys, and rows that are too old, from history and merge its small files.

It runs with Spark on the connection `spark_default`. See docs/history.md.
"""

from airflow.sdk import dag
from fennel_airflow.factory import HISTORY_MAINTENANCE
from fennel_airflow.spark_tasks import compact_history


@dag(**HISTORY_MAINTENANCE)
def history_maintenance():
    compact_history()


history_maintenance()
