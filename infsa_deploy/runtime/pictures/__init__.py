"""Pictures to tensors: reading, limits, resizing."""
