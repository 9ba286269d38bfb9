"""The replaylog: one marker per iteration, from which a lost state is replayed without emitting
output again.
"""
