"""The extender protocol: a client of other extenders, and the wire format of our own."""
