"""Aggregations: six verbs each (prepare, update, merge, finalize, delete, is-deletable), tiles, and exact sums."""
