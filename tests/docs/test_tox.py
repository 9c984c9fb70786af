"""What `tox` leaves out runs by one name, and every environment says how long it takes."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from pages import ROOT

CONFIG = configparser.ConfigParser(interpolation=None)
CONFIG.read(ROOT / "tox.ini", encoding="utf-8")
BY_DEFAULT = set(re.split(r"[,\s]+", CONFIG["tox"]["env_list"].strip()))
BY_NAME = {
    name
    for names in re.findall(r"tox run -e (\S+)$", CONFIG["testenv:all-by-name"]["commands"], re.MULTILINE)
    for name in names.split(",")
}


def test_every_environment_runs_by_default_or_by_name() -> None:
    environments = {
        name.removeprefix("testenv:") for name in CONFIG.sections() if name.startswith("testenv:")
    }
    assert environments - {"all-by-name"} == BY_DEFAULT | BY_NAME
    assert not BY_DEFAULT & BY_NAME


def test_the_slow_tests_of_every_suite_run_by_name() -> None:
    leave_out = {name for name in BY_DEFAULT if "not slow" in CONFIG[f"testenv:{name}"]["commands"]}
    (slow,) = re.findall(
        r"tox run -e (\S+) -- -m slow$", CONFIG["testenv:all-by-name"]["commands"], re.MULTILINE
    )
    assert set(slow.split(",")) == leave_out


def test_every_environment_says_its_minutes() -> None:
    for name in BY_DEFAULT | BY_NAME:
        assert re.search(r"\d+ min\b", CONFIG[f"testenv:{name}"]["description"]), name
