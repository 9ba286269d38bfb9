"""A Spark program that reads datasets with the data source and prints their rows.

Its standard input is a JSON list of options per read, `where` among them, a condition of Spark. It
is a program because Spark's classpath and
environment are fixed when its JVM starts.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.dataframes.datasource import register

MARK = "READS "


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers need this package too
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    register(spark)
    answers = []
    for options in json.load(sys.stdin):
        try:
            where = options.pop("where", "true")
            frame = spark.read.format("fennel").options(**options).load().where(where)
            rows = [
                [str(value) if hasattr(value, "year") else value for value in row]
                for row in frame.collect()
            ]
            answers.append(
                {"columns": frame.dtypes, "rows": rows, "parts": frame.rdd.getNumPartitions()}
            )
        except PySparkException as refused:
            answers.append({"error": str(refused)})
    print(MARK + json.dumps(answers))
    spark.stop()


if __name__ == "__main__":
    main()
