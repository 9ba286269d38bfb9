"""The client's protocol as values: a commit's protobuf bytes and the JSON bodies of `log`, `query`
and `lookup`, decoded once, at the door.

Nothing behind this room sees a protobuf message or an unchecked JSON value. Bytes that cannot be
understood raise `WireError`.
"""
