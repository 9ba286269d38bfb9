"""Blueprints: logical descriptions of physical assets, their identities, and the plan that turns
one set into another.
"""
