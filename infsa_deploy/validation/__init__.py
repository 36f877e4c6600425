"""Proof that artefacts compute what their reference models compute: the tolerance, and what it is applied to."""
