"""What people and machines learn about a running process: logs, metrics, traces, health, and errors
as they look on the wire.
"""
