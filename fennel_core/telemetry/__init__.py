"""Logs, metrics, traces and health of a process, and errors as HTTP responses."""
