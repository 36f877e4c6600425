"""Measuring models against each other: they take turns, each in a child process of its own."""
