"""The asset bank and the job registry."""
