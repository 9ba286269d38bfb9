"""The definition server: validates commits, runs their steps, and serves the control API."""
