"""A keyed dataset as a stream of inserts and deletes."""
