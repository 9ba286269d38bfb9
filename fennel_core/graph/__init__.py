"""The entity graph of a commit: entities, derived schemas, and the validation passes."""
