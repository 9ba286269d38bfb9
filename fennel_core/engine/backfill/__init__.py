"""Backfills: a new job over long history is computed by a Spark batch and published by the job
partition's owner.
"""
