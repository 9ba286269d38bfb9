"""Finish every commit whose process died, move reads of caught-up commits, retry destructions,
remove what no ledger knows.
"""

from airflow.sdk import dag
from fennel_airflow.factory import RECONCILE
from fennel_airflow.tasks import reconcile_ledgers


@dag(**RECONCILE)
def reconcile():
    reconcile_ledgers()


reconcile()
