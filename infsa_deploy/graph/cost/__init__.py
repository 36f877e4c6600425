"""FLOPs, bytes and memory, counted from a graph."""
