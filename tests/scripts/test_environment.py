"""scripts/environment.sh: what an interruption leaves is built again, and nothing stale is taken for current."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "environment.sh"
VENV = '#!/bin/sh\nmkdir -p .venv/bin && printf "#!/bin/sh\\necho \\"\\$*\\" >> calls\\n" > .venv/bin/python\n'
NO_PIP = "#!/bin/sh\necho 'No module named pip' >&2; exit 1\n"


@pytest.fixture
def environment(tmp_path):
    """Call `environment EXTRAS` in an empty project whose python3 makes environments that only note what is asked."""
    for folder in ("infsa_deploy", "models", "plugins", "scripts", "bin"):
        (tmp_path / folder).mkdir()
    for name in ("pyproject.toml", "scripts/constraints.txt", "infsa_deploy/a.py", "calls"):
        (tmp_path / name).touch()
    _executable(tmp_path / "bin" / "python3", f"{VENV}chmod +x .venv/bin/python\n")
    variables = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "GIT_DIR": str(tmp_path / "none")}

    def installs(extras: str) -> int:
        before = _installs(tmp_path)
        command = ["bash", "-euc", f". {SCRIPT}; environment {extras}"]
        subprocess.run(command, cwd=tmp_path, env=variables, check=True)
        return _installs(tmp_path) - before

    return installs


def _installs(folder: Path) -> int:
    return (folder / "calls").read_text().count("pip install")


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_an_environment_is_made_once(environment):
    assert [environment("cpu"), environment("cpu")] == [1, 0]


def test_one_that_was_cut_off_before_pip_came_is_made_again(environment, tmp_path):
    _executable(tmp_path / ".venv" / "bin" / "python", NO_PIP)
    assert environment("cpu") == 1


def test_what_another_set_of_extras_installed_meanwhile_is_seen(environment, tmp_path):
    """The package is installed as a copy: the tree as it was before has to be installed again."""
    environment("cpu")
    (tmp_path / "infsa_deploy" / "a.py").write_text("changed")
    environment("cpu,dev")
    (tmp_path / "infsa_deploy" / "a.py").write_text("")
    assert environment("cpu") == 1
