"""Programs that `spark-submit` runs, in a folder whose modules shadow no others."""
