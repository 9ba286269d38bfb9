"""fennel-core: an open, self-hosted data plane for the Fennel feature platform."""

__version__ = "0.1.0"
