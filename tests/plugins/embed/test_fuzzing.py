"""A minute of fuzzing for the sidecar and each reader of pictures; longer runs are in benchmarks/fuzzing.md."""

from __future__ import annotations

import pytest

from tests.plugins.embed import fuzzing

SECONDS = 60


@pytest.mark.long
@pytest.mark.parametrize("target", fuzzing.TARGETS, ids=lambda target: target.name)
def test_no_finding_in_a_minute(sdk, target):
    if not fuzzing.compiler():
        pytest.skip("needs clang++ with libFuzzer (Debian: clang, libclang-rt-dev)")
    runs, text = fuzzing.fuzz(target, fuzzing.build(target, sdk.json), f"-max_total_time={SECONDS}")
    assert runs > 1000
    kept = len(list((fuzzing.BUILD / target.name / "corpus").iterdir()))
    assert kept > len(list(target.seeds.iterdir())), text  # more of the code was reached than the seeds reach
