"""Executors: user code runs in processes of the client's own environment, never inside the
platform.
"""
