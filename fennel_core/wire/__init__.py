"""The client's protocol as values: decoded once, at the boundary.

Covers the protobuf bytes of a commit and the JSON bodies of `log`, `query` and `lookup`. No other
package handles a protobuf message or an unchecked JSON value. Input that cannot be decoded raises
`WireError`.
"""
