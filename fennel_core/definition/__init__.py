"""The definition server: commits, branches, secrets, workspaces, and what is defined."""
