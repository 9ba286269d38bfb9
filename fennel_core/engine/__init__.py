"""Engines: supervisor, runners, recovery and the Spark host that places them."""
