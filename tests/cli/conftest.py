"""Typing commands as a user does."""

from __future__ import annotations

import pytest

from infsa_deploy.cli import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Type a command in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def typed(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return typed
