"""Compute training data: accept a request from the form or the API, then run it with Spark on the
connection `spark_default`. The task log shows the progress. See docs/training_data.md.
"""

from airflow.sdk import dag
from fennel_airflow.factory import OFFLINE_QUERY
from fennel_airflow.spark_tasks import compute_features
from fennel_airflow.tasks import accept_request


@dag(**OFFLINE_QUERY)
def offline_query():
    accept_request() >> compute_features()


offline_query()
