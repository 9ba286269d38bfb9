"""Physical plans of queries: from (features given, features wanted) to the steps that compute them,
as frozen data. Pure.
"""
