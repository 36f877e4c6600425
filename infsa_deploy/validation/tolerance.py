"""Decide whether numbers are as near to the truth as a correct program of their type is: the one rule.

Rounding. A value x rounded to p bits errs by u |x| at most, u = 2^-p. Taken as random, with a mantissa spread as
logarithms are, its variance is VARIANCE u^2 x^2, VARIANCE = 1/3 * (1 / ln 2) * (3/8) = 0.18. Errors of different
roundings are taken as independent, so variances add: the 2-norm, not the 1-norm, which grows by hundreds and catches
nothing.

Sums. Adding n terms t in a chain rounds each partial sum S_k. Terms of random sign and mean y / n give, on average,
sum_k S_k^2 <= n (|t|^2 / 2 + y^2 / 3), so the variance is VARIANCE u^2 n (|t|^2 / 2 + y^2 / 3). Libraries do take a
product with a narrow matrix in one chain, so that is allowed. A total of terms of one sign, such as a norm or a sum
of weights, sets the scale of all outputs: it must be taken in blocks, `depth(n)` roundings in a row.

Ops. `op_truth` adds these up for each output: a standard deviation in three parts, by what shares an error. Then
1. `check_each`: |e| <= u_out |y| + smallest / 2 + z sd. Both the errors of a chain and its partial sums are random: e
   is a normal number of variance 2 I sd^2, I the integral of a squared Brownian motion. By Cameron and Martin its
   characteristic function is cosh(sqrt(2) l sd)^-1/2, whose pole makes the tail exp(-z pi / (2 sqrt(2))), from which
   `largest_of` takes z for as many outputs as there are;
2. `check_operands`: a relative error of one operand would move the outputs along a known direction d. Its estimate,
   <e, d> / <d, d>, averaged over runs, is at most u + z sd: one constant may be rounded, the rest is chance, and
   normal.
Both fail a correct program less than once in 10,000 comparisons: z comes from FALSE_ALARM.

Whole models. Nobody knows the sd of a network, so it is estimated: a yardstick, which is the user's own module in the
same type, errs by a root mean square over n images that were fixed beforehand. Errors of one image go together, so
there are n degrees of freedom, and two equally good programs differ in their mean squares by the F distribution with
(n, n): by more than F once in 1 / FALSE_ALARM. Two correct orders of summation, or of rounding, are not equally good,
but within MODEL_FACTOR. So `judge_model` allows RMS <= MODEL_FACTOR sqrt(F) yardstick + u RMS(truth), and the largest
error of any image z times that, so that one broken image cannot hide.

A yardstick must be plausible. Rounding m tensors of a chain, each relative to its size, errs by sqrt(VARIANCE m) u of
the output where no step magnifies what came before; AMPLIFICATION is what a step or a long sum may add. An error
beyond that, or beyond MOST of the output, blesses nothing. The same limit holds for the bound, so a few images prove
less than many, but never nothing.

An image may lie on an edge: a relu that closes a whole head, a class that wins by less than a rounding. There the
truth itself jumps when its tensors are changed by one u, and no program of the type is right. Such images are left
out of both root mean squares and counted; what says so is the user's module in float64, disturbed, never the
artefact.

Sources: Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis" (2019) and "Sharper Probabilistic
Backward Error Analysis" (2020), SIAM J. Sci. Comput.; the F test of two variances (Snedecor).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[np.float64]

ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}
VARIANCE = 1 / (8 * math.log(2))
FALSE_ALARM = 1e-5
BLOCK = 32  # terms that a correct total may add in one chain
MODEL_FACTOR = 2.0
AMPLIFICATION = 16.0
MOST = 0.25
OUTLIER = 8.0  # times the error of the median image: what is asked whether it lies on an edge
OUTLIERS = 8  # one image of so many may be asked


def depth(terms: int) -> int:
    """Roundings in a row in a total of `terms` that is taken in blocks, and in blocks of blocks."""
    return terms if terms <= BLOCK else BLOCK + depth(-(-terms // BLOCK))


def largest_of(count: int) -> float:
    """How many standard deviations the largest of `count` errors exceeds once in 1 / FALSE_ALARM."""
    return 2 * math.sqrt(2) / math.pi * math.log(max(count, 1) / FALSE_ALARM)


def normal_largest_of(count: int) -> float:
    """The same for errors that are normal."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * max(count, 1)))


@dataclass(frozen=True)
class Truth:
    """An output in float64, and the standard deviation of what a correct program errs by, in three arrays of its shape.

    Attributes:
        value: the output.
        apart: errors that are independent from element to element.
        row: errors that may go together along the last axis.
        common: errors that may go together everywhere.
    """

    value: Wide
    apart: Wide
    row: Wide
    common: Wide

    @property
    def deviation(self) -> Wide:
        """The standard deviation of all errors together."""
        total: Wide = np.sqrt(self.apart**2 + self.row**2 + self.common**2)
        return total


def bound_each(truth: Truth, dtype: str) -> Wide:
    """What each output may err by."""
    rounding = ROUNDOFF[dtype] * np.abs(truth.value) + SMALLEST[dtype] / 2
    return rounding + (1 + ROUNDOFF[dtype]) * largest_of(truth.value.size) * truth.deviation


def check_each(name: str, found: npt.ArrayLike, truth: Truth, dtype: str) -> float:
    """Return the largest error over its bound; AssertionError unless that is at most 1 and every output is finite."""
    outputs = np.asarray(found, np.float64)
    assert outputs.shape == truth.value.shape, f"{name}: shape {outputs.shape}, expected {truth.value.shape}"
    missing = int((~np.isfinite(outputs)).sum())
    assert not missing, f"{name}: {missing} of {outputs.size} are not finite"
    error, bound = np.abs(outputs - truth.value), bound_each(truth, dtype)
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    share = float(error[worst] / bound[worst])
    place = [int(index) for index in worst]
    assert share <= 1, f"{name}: error {error[worst]:.3e} at {place}, {share:.2f} times the bound {bound[worst]:.3e}"
    return share


@dataclass(frozen=True)
class OperandError:
    """The relative error of one operand that the outputs look like, and the most that chance explains."""

    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return abs(self.error) <= self.bound


def operand_error(runs: Sequence[tuple[npt.ArrayLike, Truth, Wide]], dtype: str) -> OperandError:
    """Estimate the error of an operand from runs on different inputs.

    Args:
        runs: outputs, their truth, and the direction in which they move with the logarithm of the operand.
    """
    estimates, variances = [], []
    for found, truth, direction in runs:
        power = float((direction**2).sum())
        if not power:
            continue
        estimates.append(float(((np.asarray(found, np.float64) - truth.value) * direction).sum()) / power)
        rounding = VARIANCE * ROUNDOFF[dtype] ** 2 * truth.value**2
        apart = float((direction**2 * (truth.apart**2 + rounding)).sum())
        row = float((direction**2 * truth.row**2).sum()) * direction.shape[-1]  # Cauchy and Schwarz
        common = float(np.abs(direction * truth.common).sum()) ** 2
        variances.append((apart + row + common) / power**2)
    if not estimates:
        return OperandError(0.0, 0.0)
    deviation = math.sqrt(sum(variances)) / len(variances)
    return OperandError(float(np.mean(estimates)), ROUNDOFF[dtype] + normal_largest_of(1) * deviation)


def check_operands(name: str, runs: Sequence[tuple[npt.ArrayLike, Truth, Wide]], dtype: str) -> OperandError:
    """AssertionError where operand_error is above its bound."""
    found, u = operand_error(runs, dtype), ROUNDOFF[dtype]
    said = f"{name}: over {len(runs)} runs the outputs err as if an operand were off by {found.error / u:.2f} u"
    assert found.passed, f"{said}; chance explains {found.bound / u:.2f} u"
    return found


def variance_ratio(freedom: int) -> float:
    """The quantile of F with (freedom, freedom) degrees of freedom that is exceeded once in 1 / FALSE_ALARM.

    The logarithm t of F has a density proportional to cosh(t / 2)^-freedom.
    """
    t = np.linspace(0.0, 80.0, 800_001)
    density = np.exp(-freedom * np.log(np.cosh(t / 2)))
    tail = np.cumsum(density[::-1])[::-1]
    return float(np.exp(t[np.searchsorted(-tail, -2 * FALSE_ALARM * tail[0])]))


def model_factor(images: int) -> float:
    """How many times the yardstick's root mean square error a correct program may err by over so many images."""
    return MODEL_FACTOR * math.sqrt(variance_ratio(images))


def plausible_error(dtype: str, roundings: int) -> float:
    """The most that a yardstick may err by, relative to the root mean square of the truth; see above."""
    return min(AMPLIFICATION * math.sqrt(VARIANCE * roundings) * ROUNDOFF[dtype], MOST)


def allowed_error(yardstick: float, scale: float, images: int, dtype: str, roundings: int) -> float:
    """The root mean square error allowed beside a yardstick's, for an output or a layer of root mean square `scale`."""
    plausible = plausible_error(dtype, roundings) * scale
    return min(model_factor(images) * yardstick, plausible) + ROUNDOFF[dtype] * scale


@dataclass(frozen=True)
class Judgement:
    """One output of a model over some images; errors are absolute.

    Attributes:
        rms, largest: errors of the candidate.
        rms_bound, largest_bound: what they may be.
        yardstick_rms: the yardstick's error; infinite where it is no number.
        plausible_rms: what that may be at most.
        edges: images that were left out.
    """

    rms: float
    largest: float
    rms_bound: float
    largest_bound: float
    yardstick_rms: float
    plausible_rms: float
    edges: int


def judge_model(
    found: Wide,
    narrow: Wide,
    exact: Wide,
    dtype: str,
    roundings: int,
    on_edge: Callable[[npt.NDArray[np.intp], Wide], npt.NDArray[np.bool_]],
    quantised: float = 0.0,
) -> Judgement:
    """Compare one output of a candidate, of the yardstick and of the truth, [images, ...] each.

    Args:
        roundings: how many tensors the yardstick rounds.
        on_edge: for the images of these indices, whether a disturbance of one u explains errors half as large as these.
        quantised: error of an int8 model relative to the largest output, as measured when it was made.
    """
    images = len(exact)
    wrong, off = (_errors(array, exact) for array in (found, narrow))
    by_image = [np.sqrt(np.mean(error**2, axis=1)) for error in (wrong, off)]
    factor = model_factor(images)
    usual = OUTLIER * float(np.median(by_image[1]))
    asked = np.flatnonzero((by_image[0] > factor * usual) | (by_image[1] > usual)) if usual else np.array([], np.intp)
    kept = np.ones(images, bool)
    if 0 < len(asked) <= images // OUTLIERS:
        kept[asked] = ~on_edge(asked, np.maximum(*by_image)[asked])
    scale, largest = root_mean_square(exact), float(np.abs(exact).max(initial=0))
    yardstick, slack = root_mean_square(off[kept]), MODEL_FACTOR * quantised * largest
    allowed = allowed_error(yardstick, scale, images, dtype, roundings)
    return Judgement(
        rms=root_mean_square(wrong[kept]),
        largest=float(wrong[kept].max(initial=0)),
        rms_bound=allowed + slack,
        largest_bound=normal_largest_of(wrong.size) * allowed + slack,
        yardstick_rms=yardstick,
        plausible_rms=plausible_error(dtype, roundings) * scale,
        edges=int((~kept).sum()),
    )


def _errors(found: Wide, exact: Wide) -> Wide:
    """|found - exact| as [images, numbers]; what is no number errs infinitely."""
    with np.errstate(invalid="ignore"):
        error = np.abs(found - exact).reshape(len(exact), -1)
    return np.where(np.isnan(error), np.inf, error)


def root_mean_square(values: Wide) -> float:
    """0 of no values."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(values**2))) if values.size else 0.0
