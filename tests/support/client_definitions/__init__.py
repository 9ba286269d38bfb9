"""Definitions written with the public client, one module per subject; imported only by the client's
own interpreter.

Each module has `OBJECTS`, what it commits, in order.
"""
