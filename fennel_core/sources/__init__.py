"""Streaming sources: read what others write, and enter it exactly once by the path of `log`."""
