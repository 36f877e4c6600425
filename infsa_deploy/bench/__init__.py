"""Measuring models against each other: throughput, latency, memory, energy, and how far each is from the limit.

Contenders run interleaved, each in a child process of its own; `worker` is what such a child runs.
"""
