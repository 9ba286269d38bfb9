"""Query plans: from (input features, output features) to the nodes that compute them.

Pure: a plan is frozen data, built once per query shape and branch version.
"""
