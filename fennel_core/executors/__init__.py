"""Executors: run user code in processes of the client's environment, outside the platform."""
