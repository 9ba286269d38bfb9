"""Two ledgers around one transaction: how a commit's assets come to be and cease to be, whatever
crashes on the way.
"""
