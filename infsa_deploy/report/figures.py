"""Results as PNG figures, legible in black and white: each contender has a marker, a dash and a grey of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infsa_deploy.measurements import OK, Ceilings, Cell, Row
from infsa_deploy.report.document import Figure

MARKERS = "osD^vP*X<>hp"
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Dark to light and back, so that neighbours differ in lightness as well as in hue; safe for colour-blind readers.
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7f6000", "#e69f00", "#5e4fa2", "#888888")
HATCHES = ("", "///", "\\\\\\", "...", "xxx", "+++", "---", "ooo", "**", "|||")
SIZE = (8.0, 4.6)
DPI = 140
Measure = Callable[[Row], "float | None"]


def draw_all(cells: Sequence[Cell], ceilings: Ceilings | None, origin: str, folder: Path) -> list[Figure]:
    """Every figure that the cells have data for, of one machine and command; written to `folder`."""
    figures = []
    for group in _series_groups(cells):
        name = f"{group[0].model}_batch{group[0].batch}"
        title = f"{group[0].model}, batch {group[0].batch}"
        if len(group) > 1:
            for what, label, measure in CURVES:
                figures += _curve(group, f"{what}_{name}.png", f"{title}: {label}", label, measure, origin, folder)
            figures += _memory(group, f"memory_{name}.png", f"{title}: peak memory", origin, folder)
        figures += _speedups(group, f"speedup_{name}.png", f"{title}: speed-up over eager", origin, folder)
        if ceilings:
            figures += _roofline(group, ceilings, f"roofline_{name}.png", f"{title}: roofline", origin, folder)
    return figures


def _curve(
    cells: Sequence[Cell], file: str, title: str, label: str, measure: Measure, origin: str, folder: Path
) -> list[Figure]:
    """A measure against resolution, both logarithmic; what could not run is named at the edge."""
    if not any(measure(row) for cell in cells for row in cell.rows):
        return []
    figure, axes = _canvas(title, origin)
    for index, name in enumerate(_names(cells)):
        points = [(cell.height, measure(row)) for cell in cells for row in cell.rows if row.contender == name]
        _line(axes, index, name, [(x, y) for x, y in points if y])
    _mark_ends(axes, cells, lambda cell: cell.height, below=not file.startswith("throughput"))
    axes.set(xscale="log", yscale="log", xlabel="image height = width, pixels", ylabel=label)
    axes.set_xticks([cell.height for cell in cells], [str(cell.height) for cell in cells])
    axes.minorticks_off()
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
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="peak memory of the process, GB")
    axes.set_xticks([cell.tokens for cell in known], [str(cell.tokens) for cell in known])
    axes.minorticks_off()
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
            x, style = position + (index - (len(names) - 1) / 2) * width, (index + 1) % len(COLOURS)
            label = name if position == 0 else None
            height = row.speedup_to_eager if row and row.speedup_to_eager else 0.0
            axes.bar(x, height, width, color=COLOURS[style], hatch=HATCHES[style], edgecolor="white", label=label)
            text = f"{height:.1f}" if height else (row.status if row and row.status != OK else "")
            axes.text(x, height, f" {text}", ha="center", va="bottom", fontsize=7, rotation=90)
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
    axes.set(ylabel="times as fast as eager (dashed: 1)", xlabel="image height x width, pixels")
    axes.set_xticks(range(len(cells)), [f"{cell.height}x{cell.width}" for cell in cells])
    axes.margins(y=0.2)
    return [_saved(figure, axes, file, title, origin, folder)]


def _roofline(
    cells: Sequence[Cell], ceilings: Ceilings, file: str, title: str, origin: str, folder: Path
) -> list[Figure]:
    """Achieved operations a second against operations a byte that must move, under the measured ceilings."""
    from matplotlib.ticker import LogLocator, NullFormatter

    done = [(cell, row) for cell in cells for row in cell.rows if row.latency and row.work and row.work.flops]
    if not done:
        return []
    figure, axes = _canvas(title, origin)
    reach = [row.work.flops / row.work.least_bytes for _, row in done if row.work]
    low, high = min(reach) / 4, max(reach) * 4
    for index, (kind, rate) in enumerate(ceilings.flops_per_s.items()):
        knee = rate / ceilings.bytes_per_s
        points = [(low, low * ceilings.bytes_per_s), (knee, rate), (high, rate)]
        xs = [x for x, _ in points if x <= knee or low < knee] if low < knee else [low, high]
        ys = [min(x * ceilings.bytes_per_s, rate) / 1e9 for x in xs]
        axes.plot(xs, ys, color="black", linestyle=DASHES[index], linewidth=1, label=f"ceiling {kind}")
    for index, name in enumerate(_names(cells)):
        rows = [row for _, row in done if row.contender == name]
        points = [_achieved(row) for row in rows]
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "linestyle": "none"}
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, markeredgecolor="black", **style)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte that must move", ylabel="GFLOP/s")
    for axis in (axes.xaxis, axes.yaxis):  # a range under a decade would be labelled at every tick
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    return [_saved(figure, axes, file, title, origin, folder)]


def _achieved(row: Row) -> tuple[float, float]:
    assert row.work
    assert row.latency
    return row.work.flops / row.work.least_bytes, row.work.flops / (row.latency.p50_ms * 1e6)


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
    for cell in cells:
        ended = [f"{row.contender}: {row.status}" for row in cell.rows if row.status != OK]
        if ended:
            axes.text(
                place(cell),
                0.01 if below else 0.99,
                "x " + "\nx ".join(ended),
                transform=axes.get_xaxis_transform(),
                ha="right",
                va="bottom" if below else "top",
                fontsize=6.5,
                bbox={"facecolor": "white", "edgecolor": "black", "linewidth": 0.5, "pad": 2},
            )


def _saved(figure: Any, axes: Any, file: str, title: str, origin: str, folder: Path) -> Figure:
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(folder / file)
    return Figure(file, title, origin)


def _series_groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.height * cell.width):
        groups.setdefault((cell.model, cell.batch), []).append(cell)
    return list(groups.values())


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(row.contender for cell in cells for row in cell.rows))


CURVES: tuple[tuple[str, str, Measure], ...] = (
    ("throughput", "images/s", lambda row: row.latency.images_per_s if row.latency else None),
    ("latency", "median latency, ms", lambda row: row.latency.p50_ms if row.latency else None),
    ("energy", "gross energy, J/image", lambda row: row.energy.gross_j_per_image if row.energy else None),
)
