"""History: every dataset topic rolled into Parquet on S3, exactly once by offset range, and read
back as of any time.
"""
