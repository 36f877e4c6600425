"""The Python programs in README.md, run as they stand; those that ask a server are run where there is one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "models" / "infsa_models" / "samples"


def programs(section: str) -> list[str]:
    """The Python programs of a section."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_a_python_program(digits, tmp_path, monkeypatch, capsys):
    (program,) = programs("In a Python program")
    (tmp_path / "artifacts").mkdir()
    shutil.copy(digits["linear"], tmp_path / "artifacts" / "digits_linear.onnx")
    for name, digit in (("first.png", 3), ("second.jpg", 8)):
        shutil.copy(SAMPLES / f"digit_{digit}.png", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["first.png", "3"], ["second.jpg", "8"]]
    assert lines[2] == "(1, 10)"
