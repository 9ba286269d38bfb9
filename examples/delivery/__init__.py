"""A project whose rows come from a lake, a topic and a database, by connectors that are stored."""
