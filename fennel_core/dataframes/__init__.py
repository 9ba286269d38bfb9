"""Read datasets and logged queries as Spark DataFrames: `spark.read.format("fennel")`."""
