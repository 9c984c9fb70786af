"""What an image takes from the registry and what it leaves of its base, decided without building one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "containers" / "common"))
import install_packages as install

COMMON = Path(install.__file__).parent


def report(*needs: str) -> dict[str, object]:
    return {"install": [{"metadata": {"name": "Torch", "requires_dist": ["sympy", *needs]}}]}


def test_a_build_for_cuda_is_told_by_what_it_needs() -> None:
    needs = (
        "nvidia-nccl-cu13==2.32.3; platform_system == 'Linux'",
        "triton==3.7",
        "cuda-toolkit[cublas]==13",
    )
    assert install.cuda_packages(report(*needs), "torch") == ["cuda-toolkit", "nvidia-nccl-cu13", "triton"]
    assert install.cuda_packages(report(), "torch") == []


@pytest.mark.parametrize(("found", "cuda"), [(["nvidia-nccl-cu13"], False), ([], True)])
def test_the_build_that_was_not_asked_for_is_refused(found: list[str], cuda: bool) -> None:
    with pytest.raises(install.InstallError, match=f"CUDA={int(cuda)}: .*PIP_EXTRA_INDEX_URL"):
        install.check_build(found, "torch==2.13.0", cuda)
    install.check_build(found, "torch==2.13.0", not cuda)


def test_includes_and_comments(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "base.txt").write_text("# comment\ntorch==2.13.0\n")
    (tmp_path / "all.txt").write_text("-r inner/base.txt\nml_dtypes==0.6.0; python_version > '3'  # why\n\n")
    found = install.read_requirements(tmp_path / "all.txt")
    assert found == ["torch==2.13.0", "ml_dtypes==0.6.0; python_version > '3'"]
    assert install.without(found, ["ml-dtypes"]) == ["torch==2.13.0"]


def test_versions_of_the_base_that_pip_would_not_read_are_not_pinned() -> None:
    """A line such as distro-info==1.1build1, a version of Ubuntu's, would end pip."""
    present = {
        "torch": "2.6.0a0+ecf3bae.nv25.1",
        "distro-info": "1.1build1",
        "pytz": "2022.1",
        "gpg": "1.16.0-unknown",
    }
    assert install.pins(present) == ["torch==2.6.0a0+ecf3bae.nv25.1", "pytz==2022.1"]


def add_package(folder: Path, name: str, needs: str) -> None:
    """Lay down what pip reads of a package; nothing of it works."""
    folder = folder / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {needs}\n"
    (folder / "METADATA").write_text(metadata)


def test_only_conflicts_that_the_base_did_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_package(tmp_path, "brought", "absent>=2")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(install, "pip", lambda *_: None)
    assert "brought 1.0 requires absent, which is not installed." in install.conflicts("python3")
    install._install("python3", ["six"], [])
    monkeypatch.setattr(install, "pip", lambda *_: add_package(tmp_path, "ours", "absent>=3"))
    with pytest.raises(install.InstallError) as caught:
        install._install("python3", ["ours"], [])
    assert str(caught.value).endswith("incompatible: ours 1.0 requires absent, which is not installed.")


def test_only_numbers_that_mean_something() -> None:
    command = [sys.executable, str(COMMON / "install_packages.py"), "--cuda", "12.8"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (78, "[smdp] CUDA=12.8 is not valid; allowed: 0, 1.\n")


def test_a_framework_without_an_image_is_refused() -> None:
    allowed = "allowed: huggingface, pytorch, tensorflow"
    with pytest.raises(install.InstallError, match=f"FRAMEWORK=torhc is not valid; {allowed}"):
        install.check_framework(COMMON.parent / "torhc")
    install.check_framework(COMMON.parent / "pytorch")


def base(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a line with the functions of base.sh, with a PATH of one's own."""
    code = f'set -euo pipefail; . "{COMMON}/say.sh"; . "{COMMON}/base.sh"; {script}'
    command = [shutil.which("bash") or "bash", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": str(path)}, timeout=60)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    path.chmod(0o755)


def test_a_base_without_apt_is_an_error(tmp_path: Path) -> None:
    done = base("apt_install tini", tmp_path)
    assert done.returncode == 78
    assert "[smdp] BASE_IMAGE has no apt-get: the images are built on Debian, Ubuntu" in done.stderr


def test_a_base_with_an_old_python_is_an_error(tmp_path: Path) -> None:
    program(tmp_path / "python3", "case $2 in *version_info*) exit 1;; *) echo 3.8.10;; esac")
    done = base("need_python", tmp_path)
    assert done.returncode == 78
    assert "python3 of BASE_IMAGE is 3.8.10, but smdp needs 3.10 or newer" in done.stderr


def test_a_base_without_python_gets_one_with_a_warning(tmp_path: Path) -> None:
    """apt-get is a script here, which puts the Python that runs this test where it would."""
    link = f"{shutil.which('ln')} -s {sys.executable} {tmp_path}/python3"
    program(
        tmp_path / "apt-get",
        f'echo apt-get "$@" >&2; [[ $1 != install ]] || {link}',
    )
    done = base("rm() { :; }; need_python", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning") == 1
    assert "BASE_IMAGE has no python3. The distribution's is installed, which adds about 40 MB" in done.stderr
    assert "--no-install-recommends python3 python3-venv" in done.stderr


def gcc(path: Path, version: str, name: str = "g++") -> None:
    program(path / name, f"[[ $1 != -dumpversion ]] || echo {version}")


def compiler(path: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    return base(f'rm() {{ :; }}; {before} need_compiler; echo "${{CXX:-g++}} ${{CC:-gcc}}"', path)


@pytest.mark.parametrize("version", ["12", "12.2.0", "14"])
def test_a_compiler_of_the_base_is_taken(tmp_path: Path, version: str) -> None:
    gcc(tmp_path, version)
    done = compiler(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "g++ gcc\n", "")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_newer_compiler_beside_an_old_one(tmp_path: Path, is_there: bool) -> None:
    """g++ 11 of the base, or what the distribution calls g++, as Ubuntu 22.04's is."""
    gcc(tmp_path if is_there else tmp_path / "new", "11.4.0")
    copy = f'{shutil.which("cp")} "{tmp_path}/new/$package" "{tmp_path}"'
    install = f"for package; do [[ $package != g++* ]] || {copy}; done"
    program(tmp_path / "apt-get", f'echo apt-get "$@" >&2; {install}')
    gcc(tmp_path / "new", "12.3.0", "g++-12")
    done = compiler(tmp_path)
    assert (done.returncode, done.stdout) == (0, "g++-12 gcc-12\n"), done.stderr
    assert "is 11.4.0, but smdp needs 12 or newer: building with g++-12" in done.stderr
    assert ("--no-install-recommends g++ libc6-dev" in done.stderr) is not is_there
    assert "--no-install-recommends g++-12 libc6-dev" in done.stderr


def test_a_base_whose_compilers_are_all_old_is_an_error(tmp_path: Path) -> None:
    gcc(tmp_path, "10.2.1")
    program(tmp_path / "apt-get", '[[ $1 != install ]] || { echo "E: no $5" >&2; exit 100; }')
    done = compiler(tmp_path)
    assert done.returncode == 78
    assert "E: no g++-12\n[smdp] g++-12 cannot be installed, see above: use a BASE_IMAGE" in done.stderr


def test_the_compiler_that_a_base_names_is_left(tmp_path: Path) -> None:
    done = compiler(tmp_path, "export CXX=clang++ CC=clang;")
    assert (done.returncode, done.stdout, done.stderr) == (0, "clang++ clang\n", "")
