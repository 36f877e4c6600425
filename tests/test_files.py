"""Sizes in words."""

from __future__ import annotations

import pytest

from infsa_deploy.files import format_bytes


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 B"), (7_262_208, "7.26 MB"), (1.2421e9, "1.24 GB"), (28.186e12, "28.2 TB")]
)
def test_sizes_in_words(count, text):
    assert format_bytes(count) == text
