"""A plug-in of pytest that fails a run in which tests are skipped for want of a package."""

import re

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    # with xdist, only the process that collects the results has one
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return

    reasons = (str(report.longrepr) for report in reporter.stats.get("skipped", ()))
    found = (re.search(r"could not import '([\w.]+)'", reason) for reason in reasons)
    if missing := sorted({match[1] for match in found if match}):
        reporter.write_line(f"\nnot installed: {', '.join(missing)}; pip install -e . --group dev")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
