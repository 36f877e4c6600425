"""How tests are spread over workers: by file, and what shares a costly fixture together."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadGroupScheduling

GROUPS = {  # by a fixture that builds for minutes; a test of both belongs to the first
    "sdk": "C++ library",
    "built": "plugin library",
}


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order is that of tests.session.selection


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if group := next((group for fixture, group in GROUPS.items() if fixture in fixtures), None):
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadGroupScheduling:
    return FilesAndGroups(config, log)


class FilesAndGroups(LoadGroupScheduling):
    """A group of tests stays on one worker, and so does a file that names no group."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return scope.split("::")[0] if scope == nodeid else scope
