"""The entity graph of a commit: entities, typed edges, derived schemas, and the passes that decide
whether it may be committed.
"""
