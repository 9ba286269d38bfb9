"""Everything a person or a process manager starts: servers, the command line, the local
platform.
"""
