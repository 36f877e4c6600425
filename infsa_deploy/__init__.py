"""Infinite Self-Attention Vision Transformers: export, prove, build and run."""

from infsa_deploy.version import __version__ as __version__
