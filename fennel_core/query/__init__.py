"""The query server: queries, lookups, inspect and the barrier, and the front door of the API."""
