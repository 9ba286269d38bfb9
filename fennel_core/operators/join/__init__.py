"""Joins: a stream or a keyed dataset against the versions of a keyed dataset."""
