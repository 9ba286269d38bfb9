"""Backfills: a Spark batch computes a new job over long history; its owner publishes the result."""
