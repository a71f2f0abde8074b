"""Strict runs: a test that is skipped because a component is absent fails instead, so CI cannot pass by skipping."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator

import pytest

STRICT = bool(os.environ.get("STRICT"))


@pytest.fixture(scope="session")
def need() -> Callable[[str, str], str]:
    """`need(program, package)`: its path; skips the test (fails in strict runs) with its name and how to get it."""

    def path_of(program: str, package: str) -> str:
        path = shutil.which(program)
        if path is None:
            pytest.skip(f"{program} is absent: install the Debian package {package}")
        return path

    return path_of


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in a strict run: {report.longrepr}"
    return report
