"""Blueprints: logical descriptions of physical assets, their identities, and the plan of a commit
that turns the assets of one version into those of the next.
"""
