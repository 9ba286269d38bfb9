"""Finish commits whose process died, retry destructions, and delete orphaned topics: what the
definition server's loop does, also while no definition server is running (decision 0035).
"""

from airflow.sdk import dag
from fennel_airflow.factory import RECONCILE
from fennel_airflow.tasks import reconcile_ledgers


@dag(**RECONCILE)
def reconcile():
    reconcile_ledgers()


reconcile()
