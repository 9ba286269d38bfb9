"""Runs of stateless native operators, fused into one step."""
