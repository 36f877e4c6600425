"""Running models where only the declared dependencies of `infsa-deploy[cpu]` are installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib", reason="needs tomllib, of Python 3.11")
ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import importlib.util, sys
import numpy as np
import infsa_deploy

absent = [name for name in ("torch", "onnx", "onnx_ir", "tensorrt", "scipy") if importlib.util.find_spec(name)]
with infsa_deploy.load(sys.argv[1], threads=1) as model:
    print(model.predict([np.full((30, 50, 3), 200, np.uint8), sys.argv[2]], top=1)[1].classes, absent)
try:
    infsa_deploy.load(sys.argv[1] + ".engine")
except infsa_deploy.DeployError as error:
    print(error.what)
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory) -> Path:
    """A virtual environment that holds what `infsa-deploy[cpu]` asks for, by links to the files installed here."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in _closure([*project["dependencies"], *project["optional-dependencies"]["cpu"]]):
        for source in _installed(name):
            (site / source.name).symlink_to(source)
    return folder / "bin" / "python"


def _closure(requirements: Iterable[str]) -> set[str]:
    found: set[str] = set()
    open_requirements = [Requirement(text) for text in requirements]
    while open_requirements:
        requirement = open_requirements.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            open_requirements += [Requirement(text) for text in metadata.requires(name) or ()]
    return found


def _installed(name: str) -> set[Path]:
    """Top-level files and folders of a distribution."""
    distribution = metadata.distribution(name)
    tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    return {Path(str(distribution.locate_file(top))) for top in tops}


def test_a_program_needs_no_torch(bare_python, tiny, export):
    path, _ = export(tiny("linear"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "models")))
    sample = ROOT / "models" / "infsa_models" / "samples" / "digit_0.png"
    typed = [bare_python, "-c", PROGRAM, path, sample]
    printed = subprocess.run(typed, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert re.fullmatch(r"\('[a-e]',\) \[\]", printed[0])
    assert printed[1] == f"{path}.engine does not exist."


INSPECT = """
import sys
sys.modules["torch"] = None
from infsa_deploy.cli import main
main(["inspect", sys.argv[1], "--json"])
"""


def test_inspect_needs_no_torch(digits):
    printed = subprocess.run([sys.executable, "-c", INSPECT, digits["linear"]], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout)["metadata"]["variant"] == "linear"
