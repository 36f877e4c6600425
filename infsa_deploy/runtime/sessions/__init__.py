"""One file a runtime, and the protocol that all of them keep."""
