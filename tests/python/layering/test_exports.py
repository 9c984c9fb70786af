"""libsmdp shows its C++ API and nothing else: what it is made of must not stand in for another library's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import smdp

LIBRARY = Path(smdp.__file__).parent / "libsmdp.so"
# Functions and objects of namespace smdp, and type information of its classes.
API = re.compile(r"_Z(N|NK|TIN|TSN|TVN)4smdp")
INSIDE = re.compile(r"_Z(N|NK|TIN|TSN|TVN)4smdp5Group4Impl|_Z(N|NK|TIN|TSN|TVN)4smdp8TcpStore6Server")


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils")
def test_only_the_api_is_exported() -> None:
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(LIBRARY)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert len(names) > 150
    assert [name for name in names if not API.match(name)] == []
    assert [name for name in names if INSIDE.match(name)] == []
    assert {"_ZN4smdp5GroupD1Ev", "_ZTIN4smdp5ErrorE", "_ZTVN4smdp13PeerLostErrorE"} <= set(names)
