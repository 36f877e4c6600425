"""The report says what was measured, all of it, and stands alone."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from infsa_deploy.bench.contenders import CONTENDERS
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.records.results_file import Results
from infsa_deploy.report import figures, paper, tables
from infsa_deploy.report.render import to_html, to_markdown
from infsa_deploy.report.write import compose, write_report

pytest.importorskip("matplotlib", reason="needs the extra `plot` (matplotlib), which is not installed")

COMMAND = "infsa-deploy bench --model infvit_linear_4l --sweep 224:1024"


@pytest.fixture(scope="session")
def report(written, tmp_path_factory):
    paths = write_report([written], tmp_path_factory.mktemp("reports") / "report")
    return {path.name: path for path in paths}


def test_every_figure_is_there(report):
    curves = {f"{what}_infvit_linear_4l_batch1.png" for what in ("throughput", "latency", "energy", "memory")}
    bars = {"speedup_infvit_linear_4l_batch1.png", "roofline_infvit_linear_4l_batch1.png"}
    assert set(report) == {"report.md", "report.html"} | curves | bars
    assert all(report[name].read_bytes()[:4] == b"\x89PNG" for name in curves | bars)


def test_results_are_not_replaced_by_their_report(written, tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").hardlink_to(written)
    with pytest.raises(UsageError, match=r"report\.html would be replaced"):
        write_report([written], tmp_path / "report")
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.html"]


def test_markdown_tells_machine_command_figures_and_reasons(report):
    text = report["report.md"].read_text()
    assert COMMAND in text
    assert "Imaginary CPU" in text
    assert "softmax: refused: it needs 99.0 GB, and 7.0 GB are free" in text
    assert re.search(r"^\| eager \| 99.48 ! \| 99.48 \| - \| \d+\.\d% \| 10.05 \| 1.00 \| 400 MB \|", text, re.M)
    assert re.search(r"^\| ours \| 19.9 ! \| 19.9 \| - \| \d+\.\d% \| 50.26 \| 5.00 \(5.00-5.00\) \|", text, re.M)
    assert "- ! all: load average 5.0 on 2 cores at the end of the rounds." in text
    assert "7 rounds; load average at their end 5.0, CPU time stolen by the hypervisor 1.0%." in text.replace(
        "- 7", "7"
    )
    assert "- ours: about ours <b>." in text
    for name in report:
        assert name.startswith("report.") or f"]({name})" in text
    widths = [{line.count("|") for line in block.splitlines()} for block in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    assert all(len(width) == 1 for width in widths)


class Links(HTMLParser):
    """Everything a page would load, and whether its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_no_other_file(report):
    page = report["report.html"].read_text()
    links = Links()
    links.feed(page)
    assert links.open == []
    assert len(links.sources) == 6
    assert all(source.startswith("data:image/png;base64,") for source in links.sources)
    assert "url(" not in page
    assert "about ours &lt;b&gt;" in page


def test_every_figure_names_its_command_and_machine(results, tmp_path):
    sections = compose(results, tmp_path).sections
    figures = [figure for section in sections for figure in section.figures]
    assert len(figures) == 6
    assert all(COMMAND in figure.origin and "Imaginary CPU" in figure.origin for figure in figures)


def test_a_sweep_that_was_continued_is_drawn_in_one(results, tmp_path):
    again = replace(results.runs[0], started="2030-01-03T00:00:00", command="the second command")
    better = replace(results.ceilings[0], run=again.started, flops_per_s={"fp32": 2e11, "int8": 3e11})
    cells = (*results.cells[:2], replace(results.cells[2], run=again.started))
    document = compose(Results((*results.runs, again), (*results.ceilings, better), (), cells), tmp_path)
    drawn = [figure for section in document.sections for figure in section.figures]
    assert len(drawn) == len({figure.file for figure in drawn}) == 6
    assert all(COMMAND in figure.origin and "the second command" in figure.origin for figure in drawn)
    (scaling,) = (section.tables[0] for section in document.sections if section.title.startswith("Scaling"))
    assert len(scaling.headings) == 4
    assert "Run of 2030-01-03T00:00:00." in to_markdown(document)


def test_figures_of_other_machines_and_settings_have_files_of_their_own(results, tmp_path):
    run, cells = results.runs[0], results.cells
    runs, packages = [run], {"torch": "2.12"}
    for start, changes in (("2031", {"settings": replace(run.settings, threads=1)}), ("2032", {})):
        machine = replace(run.machine, processor=f"CPU of {start}", packages=packages)
        runs.append(replace(run, started=start, machine=machine, **changes))
        cells += (replace(results.cells[0], run=start),)
    document = compose(Results(tuple(runs), results.ceilings, (), cells), tmp_path)
    drawn = [figure for section in document.sections for figure in section.figures]
    assert len(drawn) == len({figure.file for figure in drawn}) == 6 + 1 + 1  # two have one cell, and no ceilings
    assert "2031, 2032: torch 2.12." in document.sections[0].paragraphs


def test_an_axis_is_labelled_whatever_its_range():
    from matplotlib.figure import Figure

    from infsa_deploy.report.figures import _plain_ticks

    for low, high, labels in ((0.3, 4, ["0.5", "1", "2"]), (12, 70_000, ["100", "1,000", "10,000"])):
        axes = Figure().subplots()
        axes.set(yscale="log", ylim=(low, high))
        _plain_ticks(axes.yaxis)
        ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
        assert axes.yaxis.get_major_formatter().format_ticks(ticks) == labels


def test_time_per_token_against_size(results):
    table = tables.scaling_table(results.cells)
    assert table.headings == ("us a token", "224x224", "512x512", "1024x1024")
    assert table.rows[0] == ("eager", "505", "505", "505")
    assert table.rows[1] == ("softmax", "909", "909", "refused")


def test_predictions_are_a_table_of_their_own(results):
    table = tables.prediction_table(results.cells[2])
    assert table is not None
    assert table.headings == ("contender", "predicted floor, a100-40gb, ms")
    assert table.rows[0] == ("eager", "0.25 (memory)")
    assert table.rows[1] == ("softmax", "-")
    assert "not measured" in table.notes[0]
    assert not any("predicted" in heading for heading in tables.HEADINGS)


def test_the_papers_figures_stand_beside_the_same_device_and_work_only(results, on_an_a100, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "draw", lambda *arguments: [])
    for found, sizes in ((results, []), (on_an_a100, [1024])):
        shown = [cell.height for cell in found.cells if paper.beside(cell, found.runs[0].machine)]
        assert shown == sizes
    assert "231" in to_markdown(compose(on_an_a100, tmp_path))
    assert "0.87" in to_html(compose(on_an_a100, tmp_path), tmp_path)


def test_what_was_not_measured_is_a_dash(results):
    rows = tables.cell_table(results, results.cells[2]).rows
    assert rows[1][:2] == ("softmax", "refused")
    assert set(rows[1][2:]) == {"-"}
    assert "0" not in rows[1]


def test_without_cells_there_is_no_report(written, tmp_path):
    (tmp_path / "run.jsonl").write_bytes(written.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(ModelError, match="no measurements"):
        write_report([tmp_path / "run.jsonl"], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_lines_differ_without_colour():
    from infsa_deploy.report.figures import COLOURS, DASHES, HATCHES, MARKERS, _bar_style

    many = range(2 * len(CONTENDERS))  # all of ours, and as many given files
    assert len({(MARKERS[i % len(MARKERS)], str(DASHES[i % len(DASHES)])) for i in many}) == len(many)
    assert len(set(HATCHES)) == len(COLOURS)
    assert len(set(map(_bar_style, many))) == len(many)
