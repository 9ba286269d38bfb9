"""Map: fused stateless native operators."""
