"""The rule holds for what chance does, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infsa_deploy.validation import tolerance as t

U = t.ROUNDOFF["fp32"]
IMAGES, CLASSES = 64, 10


def truth(rng: np.random.Generator, *shape: int) -> t.Truth:
    """Outputs that a correct program errs by 2 u of, each by itself."""
    value = rng.standard_normal(shape)
    nothing = np.zeros(shape)
    return t.Truth(value, 2 * U * np.abs(value), nothing, nothing)


def test_the_quantiles_of_f_are_those_of_a_table():
    """scipy.stats.f.isf(1e-5, n, n) ** 0.5."""
    found = [t.variance_ratio(n) ** 0.5 for n in (1, 2, 8, 64, 128)]
    assert found == pytest.approx([63661.98, 316.2262, 6.453181, 1.729800, 1.465506], rel=1e-4)


def test_a_total_is_taken_in_blocks_of_blocks():
    assert [t.depth(n) for n in (1, 32, 33, 331776)] == [1, 32, 34, 32 + 32 + 32 + 11]


def test_more_outputs_may_err_by_more():
    assert 10 < t.largest_of(1) < t.largest_of(10**6) < 25
    assert 4 < t.normal_largest_of(1) < t.normal_largest_of(10**6) < 7


def test_each_output_is_bounded_by_its_own_deviation(rng):
    exact = truth(rng, 50, 4)
    noise = rng.standard_normal((50, 4)) * exact.deviation
    assert t.check_each("y", exact.value + noise, exact, "fp32") < 1
    small = np.unravel_index(np.abs(exact.value).argmin(), exact.value.shape)
    noise[small] = 100 * exact.deviation[small]
    assert abs(noise[small]) < np.abs(noise).max()  # no larger than the others', and still too large for its output
    with pytest.raises(AssertionError, match="times the bound"):
        t.check_each("y", exact.value + noise, exact, "fp32")


def test_zeros_are_zeros():
    nothing = np.zeros((2, 3))
    exact = t.Truth(nothing, nothing, nothing, nothing)
    assert t.check_each("y", nothing, exact, "fp16") == 0
    with pytest.raises(AssertionError, match="times the bound"):
        t.check_each("y", nothing + 1e-7, exact, "fp16")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_not_compared(wrong, rng):
    exact = truth(rng, 4, 4)
    found = exact.value.copy()
    found[1, 2] = wrong
    with pytest.raises(AssertionError, match="1 of 16 are not finite"):
        t.check_each("y", found, exact, "fp32")
    with pytest.raises(AssertionError, match="shape"):
        t.check_each("y", found[:2], exact, "fp32")


@pytest.mark.parametrize(("error", "passes"), [(0.0, True), (8 * U, False), (-8 * U, False)])
def test_an_operand_that_is_off_shows_over_several_runs(error, passes, rng):
    runs = []
    for _ in range(8):
        exact = truth(rng, 10, 4)
        runs.append((exact.value * (1 + error) + rng.standard_normal((10, 4)) * exact.apart, exact, exact.value))
        assert t.check_each("y", runs[-1][0], exact, "fp32") < 1  # each by itself is within its bound
    assert t.operand_error(runs, "fp32").passed is passes


def test_errors_that_go_together_are_averaged_over_runs_alone(rng):
    exact = truth(rng, 1000, 4)
    together = replace(exact, apart=exact.row, common=exact.apart)
    apart, common = (t.operand_error([(each.value, each, each.value)], "fp32").bound for each in (exact, together))
    assert common > 2 * apart


class Models:
    """A truth, a yardstick and a candidate that errs as much, by chance."""

    def __init__(self, rng, images=IMAGES, level=1e-6):
        self.exact = rng.standard_normal((images, CLASSES))
        self.narrow, self.found = (self.exact + level * rng.standard_normal(self.exact.shape) for _ in range(2))
        self.asked = []

    def judge(self, edge=False, dtype="fp32", **options):
        def on_edge(images, errors):
            self.asked += list(images)
            return np.full(len(images), edge)

        return t.judge_model(self.found, self.narrow, self.exact, dtype, 100, on_edge, **options)


def passes(judged: t.Judgement) -> bool:
    plausible = judged.yardstick_rms <= judged.plausible_rms
    return plausible and judged.rms <= judged.rms_bound and judged.largest <= judged.largest_bound


def test_a_model_as_good_as_its_yardstick_passes(rng):
    assert passes(Models(rng).judge())


def test_a_model_four_times_as_wrong_does_not_pass(rng):
    models = Models(rng)
    models.found = models.exact + 4 * (models.found - models.exact)
    assert not passes(models.judge())
    assert models.asked == []


@pytest.mark.parametrize("wrong", [1e-3, np.nan])
def test_one_broken_image_does_not_hide(wrong, rng):
    models = Models(rng)
    models.found[5] += wrong
    assert not passes(models.judge())
    assert models.asked == [5]


def test_an_image_on_an_edge_is_left_out_and_counted(rng):
    models = Models(rng)
    models.narrow[7] += 1e-3
    models.found[5] += 1e-3
    assert models.judge(edge=True).edges == 2
    assert passes(models.judge(edge=True))


def test_a_yardstick_on_an_edge_excuses_nothing(rng):
    models = Models(rng)
    models.narrow[7] += 1e-3
    models.found = models.exact + 1e-5 * rng.standard_normal(models.exact.shape)
    assert not passes(models.judge(edge=True))


def test_an_edge_is_not_asked_for_where_many_images_are_wrong(rng):
    models = Models(rng)
    models.found[:20] += 1e-3
    assert not passes(models.judge(edge=True))
    assert models.asked == []


def test_an_implausible_yardstick_blesses_nothing(rng):
    for level, dtype in ((1e-4, "fp32"), (0.5, "bf16")):
        models = Models(rng, level=level)
        judged = models.judge(dtype=dtype)
        assert judged.yardstick_rms > judged.plausible_rms
        assert not passes(judged)


def test_one_image_still_proves_something(rng):
    """The quantile of F with one degree of freedom is 4e9; what is plausible bounds it."""
    models = Models(rng, images=1)
    assert passes(models.judge())
    models.found += 1e-4
    assert not passes(models.judge())


def test_outputs_that_are_all_zero():
    nothing = np.zeros((4, 3))
    never = lambda images, errors: pytest.fail("asked")  # noqa: E731
    assert passes(t.judge_model(nothing, nothing, nothing, "fp32", 10, never))
    assert not passes(t.judge_model(nothing + 1e-9, nothing, nothing, "fp32", 10, never))


def test_what_quantising_did_is_allowed_on_top(rng):
    models = Models(rng)
    models.found += 0.02
    assert not passes(models.judge())
    assert passes(models.judge(quantised=0.02))
