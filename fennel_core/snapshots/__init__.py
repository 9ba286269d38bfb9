"""Snapshots: copies of job partitions' state on S3, from which a partition restarts where its local
state is gone.
"""
