"""Query servers: plans run against slots and executors, lookups, inspect and the barrier; also the
front door of the API.
"""
