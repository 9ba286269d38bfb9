"""Ingest: `log` is typed at the door, stamped with its position and written once, for every branch
that names the endpoint.
"""
