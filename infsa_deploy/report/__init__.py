"""Benchmark results as Markdown, figures and one HTML page; reads results files and nothing else."""
