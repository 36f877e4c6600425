"""How tests are spread over workers: by file, and what shares a costly fixture together."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadGroupScheduling

GROUPS = {  # by a fixture that builds for minutes in a folder of its own
    "built": "plugin library",
    "sdk": "C++ library",
}


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order is that of tests.session.selection


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in GROUPS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(GROUPS[fixture]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadGroupScheduling:
    return FilesAndGroups(config, log)


class FilesAndGroups(LoadGroupScheduling):
    """A group of tests stays on one worker, and so does a file that names no group."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return scope.split("::")[0] if scope == nodeid else scope
