"""Aggregations as six verbs over bags of signed events: prepare, update, merge, finalize, delete,
is-deletable.
"""
