"""Aggregations over multisets of signed events: prepare, update, merge, finalize, delete and
is_deletable, after Chronon's aggregators.
"""
