"""Results as PNG figures, legible in black and white: each contender has a marker, a dash and a grey of its own."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from infsa_deploy.records.bench import OK, Ceilings, Cell, Row
from infsa_deploy.records.round_statistics import latency, median_interval, paired_ratios
from infsa_deploy.report.document import Figure

MARKERS = "osD^vP*X<>hp"
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Dark to light and back, so that neighbours differ in lightness as well as in hue; safe for colour-blind readers.
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7f6000", "#e69f00", "#5e4fa2", "#888888")
HATCHES = ("", "///", "\\\\\\", "...", "xxx", "+++", "---", "ooo", "**", "|||")
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0}
SIZE = (8.0, 4.6)
DPI = 140
Measure = Callable[[Row, int], "float | None"]


def draw(cells: Sequence[Cell], ceilings: Sequence[Ceilings], name: str, origin: str, folder: Path) -> list[Figure]:
    """Every figure that the cells have data for, to `folder`; `name` ends the files' names.

    Args:
        cells: of one model and batch, measured alike, the smallest size first.
        ceilings: of the runs that measured them.
        origin: their machine and commands.
    """
    title, figures = f"{cells[0].model}, batch {cells[0].batch}", []
    if len(cells) > 1:
        for what, label, measure in CURVES:
            figures += _curve(cells, f"{what}_{name}.png", f"{title}: {label}", label, measure, origin, folder)
        figures += _memory(cells, f"memory_{name}.png", f"{title}: peak memory", origin, folder)
    figures += _speedups(cells, f"speedup_{name}.png", f"{title}: speed-up over eager", origin, folder)
    if ceilings:
        more = f" (highest ceilings of {len(ceilings)} runs)" if len(ceilings) > 1 else ""
        figures += _roofline(cells, ceilings, f"roofline_{name}.png", f"{title}: roofline{more}", origin, folder)
    return figures


def _curve(
    cells: Sequence[Cell], file: str, title: str, label: str, measure: Measure, origin: str, folder: Path
) -> list[Figure]:
    """A measure against resolution, both logarithmic; what could not run is named at the edge."""
    if not any(measure(row, cell.batch) for cell in cells for row in cell.rows):
        return []
    figure, axes = _canvas(title, origin)
    for index, name in enumerate(_names(cells)):
        found = [(cell, row) for cell in cells for row in cell.rows if row.contender == name]
        points = [(_side(cell), measure(row, cell.batch)) for cell, row in found]
        _line(axes, index, name, [(x, y) for x, y in points if y])
    _mark_ends(axes, cells, _side, below=not file.startswith("throughput"))
    square = all(cell.height == cell.width for cell in cells)
    axes.set(xscale="log", yscale="log", xlabel=f"image height {'=' if square else 'x'} width, pixels", ylabel=label)
    axes.set_xticks(list(map(_side, cells)), [str(cell.height) if square else cell.size for cell in cells])
    axes.minorticks_off()
    _plain_ticks(axes.yaxis)
    return [_saved(figure, axes, file, title, origin, folder)]


def _memory(cells: Sequence[Cell], file: str, title: str, origin: str, folder: Path) -> list[Figure]:
    known = [cell for cell in cells if cell.tokens]
    if not any(row.peak_memory_bytes for cell in known for row in cell.rows):
        return []
    figure, axes = _canvas(title, origin)
    for index, name in enumerate(_names(known)):
        rows = [(cell.tokens, row.peak_memory_bytes) for cell in known for row in cell.rows if row.contender == name]
        _line(axes, index, name, [(tokens, peak / 1e9) for tokens, peak in rows if tokens and peak])
    _mark_ends(axes, known, lambda cell: cell.tokens or 0, below=True)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="peak memory, GB")
    axes.set_xticks([cell.tokens for cell in known], [str(cell.tokens) for cell in known])
    axes.minorticks_off()
    _plain_ticks(axes.yaxis)
    return [_saved(figure, axes, file, title, origin, folder)]


def _speedups(cells: Sequence[Cell], file: str, title: str, origin: str, folder: Path) -> list[Figure]:
    names = [name for name in _names(cells) if name != "eager"]
    if not names:
        return []
    figure, axes = _canvas(title, origin)
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        for position, cell in enumerate(cells):
            row = next((row for row in cell.rows if row.contender == name), None)
            x, (colour, hatch) = position + (index - (len(names) - 1) / 2) * width, _bar_style(index + 1)
            label = name if position == 0 else None
            ratios = paired_ratios(cell.rows[0], row) if row else []
            height, interval = median(ratios) if ratios else 0.0, median_interval(ratios)
            axes.bar(x, height, width, color=colour, hatch=hatch, edgecolor="white", label=label)
            if interval:
                axes.plot((x, x), interval, color="black", linewidth=1)
            text = f"{height:.2f}" if height else _no_ratio(row)
            axes.text(
                x,
                interval[1] if interval else height,
                f" {text}",
                ha="center",
                va="bottom",
                fontsize=7,
                rotation=90,
                bbox=CLEAR,
            )
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
    axes.set(ylabel="times as fast as eager (dashed: 1)", xlabel="image height x width, pixels")
    axes.set_xticks(range(len(cells)), [cell.size for cell in cells])
    axes.margins(y=0.2)
    return [_saved(figure, axes, file, title, origin, folder)]


def _roofline(
    cells: Sequence[Cell], ceilings: Sequence[Ceilings], file: str, title: str, origin: str, folder: Path
) -> list[Figure]:
    """Achieved operations a second against operations a byte that must move, under the measured ceilings."""
    done = [row for cell in cells for row in cell.rows if row.rounds_ms and row.work and row.work.flops]
    if not done:
        return []
    figure, axes = _canvas(title, origin)
    reach = [_achieved(row)[0] for row in done]
    _ceilings(axes, ceilings, min(reach) / 4, max(reach) * 4)
    for index, name in enumerate(_names(cells)):
        points = [_achieved(row) for row in done if row.contender == name]
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "linestyle": "none"}
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, markeredgecolor="black", **style)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte that must move", ylabel="GFLOP/s")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_ticks(axis)
    return [_saved(figure, axes, file, title, origin, folder)]


def _ceilings(axes: Any, ceilings: Sequence[Ceilings], low: float, high: float) -> None:
    """The roof of each type from `low` to `high` operations a byte: the highest measured in any run."""
    rates: dict[str, float] = {}
    for found in ceilings:
        rates |= {kind: max(rate, rates.get(kind, 0.0)) for kind, rate in found.flops_per_s.items()}
    bytes_per_s = max(found.bytes_per_s for found in ceilings)
    for dash, (kind, rate) in zip(DASHES, rates.items(), strict=False):
        xs = sorted({low, min(max(low, rate / bytes_per_s), high), high})
        ys = [min(x * bytes_per_s, rate) / 1e9 for x in xs]
        axes.plot(xs, ys, color="black", linestyle=dash, linewidth=1, label=f"ceiling {kind}")


def _plain_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis: at 1, 2 and 5 of each decade, or at decades only where they are many."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def _achieved(row: Row) -> tuple[float, float]:
    times = latency(row, 1)
    assert row.work
    assert times
    return row.work.flops / row.work.least_bytes, row.work.flops / (times.p50_ms * 1e6)


def _canvas(title: str, origin: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.supxlabel("\n".join(textwrap.wrap(origin, 150)), fontsize=6, x=0.01, ha="left", color="#444444")
    return figure, axes


def _line(axes: Any, index: int, name: str, points: Sequence[tuple[float, float]]) -> None:
    colour, marker, dash = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, color=colour, marker=marker, linestyle=dash, linewidth=1.6, markersize=6, label=name)


def _mark_ends(axes: Any, cells: Sequence[Cell], place: Callable[[Cell], float], *, below: bool) -> None:
    """A column of text over each size where somebody could not run, at the edge that the curves leave free."""
    texts = [[f"{row.contender}: {row.status}" for row in cell.rows if row.status != OK] for cell in cells]
    axes.margins(y=0.05 * (1 + max(map(len, texts))))
    for cell, ended in zip(cells, texts, strict=True):
        if ended:
            axes.text(
                place(cell),
                0.01 if below else 0.99,
                "x " + "\nx ".join(ended),
                transform=axes.get_xaxis_transform(),
                ha="left" if cell is cells[0] else "right",
                va="bottom" if below else "top",
                fontsize=6.5,
                bbox={"facecolor": "white", "edgecolor": "black", "linewidth": 0.5, "pad": 2},
            )


def _saved(figure: Any, axes: Any, file: str, title: str, origin: str, folder: Path) -> Figure:
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(folder / file)
    return Figure(file, title, origin)


def _bar_style(index: int) -> tuple[str, str]:
    """A colour and a hatch, other ones together after each turn through the colours."""
    turns, place = divmod(index, len(COLOURS))
    return COLOURS[place], HATCHES[(place + turns) % len(HATCHES)]


def _no_ratio(row: Row | None) -> str:
    """What stands where a bar would: what ended the contender, or that there is no eager to compare with."""
    if row is None:
        return ""
    return "no eager" if row.status == OK else row.status


def _side(cell: Cell) -> float:
    """Side of a square of as many pixels."""
    return math.sqrt(cell.height * cell.width)


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(row.contender for cell in cells for row in cell.rows))


def _images_per_s(row: Row, batch: int) -> float | None:
    times = latency(row, batch)
    return times.images_per_s if times else None


def _p50_ms(row: Row, batch: int) -> float | None:
    times = latency(row, batch)
    return times.p50_ms if times else None


CURVES: tuple[tuple[str, str, Measure], ...] = (
    ("throughput", "images/s", _images_per_s),
    ("latency", "median latency, ms", _p50_ms),
    ("energy", "gross energy, J/image", lambda row, batch: row.energy.gross_j_per_image if row.energy else None),
)
