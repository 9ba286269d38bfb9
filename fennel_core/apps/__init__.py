"""Executables: the servers, the command line and the local platform."""
