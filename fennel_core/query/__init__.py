"""The query server: queries, lookups, inspect and the barrier, and the API gateway."""
