"""Drills: could this job partition be rebuilt, and would it be the same?"""
