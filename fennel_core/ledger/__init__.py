"""The creation and destruction ledgers, and the commit protocol that keeps them crash-safe."""
