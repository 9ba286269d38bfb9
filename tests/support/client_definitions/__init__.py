"""Definitions written with the public client, one module per topic.

Only the client's own interpreter imports them. `OBJECTS` of a module is the ordered content of its
commit.
"""
