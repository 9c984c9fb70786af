"""The user's script: its source, its requirements, and the command that runs it."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from smdp import ConfigError, config
from smdp.sagemaker.job import Job


@dataclass(frozen=True)
class EntryScript:
    """The script that every rank runs, in its folder.

    Attributes:
        program: Path, relative to `code_dir`, of a .py or .sh file or another program; or a module name.
        code_dir: The folder with the script.
        module_dir: The source of the folder: the folder itself, an archive, or an S3 URI.
    """

    program: str
    code_dir: str
    module_dir: str

    @classmethod
    def find(cls, job: Job, environ: Mapping[str, str]) -> EntryScript:
        """Returns the script that the variables or hyperparameters name.

        Raises:
            ConfigError: None of them names a script.
        """
        named = {
            "SAGEMAKER_PROGRAM": config.read(environ, "SAGEMAKER_PROGRAM"),
            "the hyperparameter sagemaker_program": job.all_hyperparameters.get("sagemaker_program"),
            "SM_ENTRY_SCRIPT": config.read(environ, "SM_ENTRY_SCRIPT"),
            "SM_USER_ENTRY_POINT": config.read(environ, "SM_USER_ENTRY_POINT"),
        }
        program = next((str(name) for name in named.values() if name), None)
        if program is None:
            raise ConfigError(f"[smdp] there is no entry script; set {' or '.join(named)} to its name")
        module_dir = job.all_hyperparameters.get("sagemaker_submit_directory")
        module_dir = str(module_dir or config.read(environ, "SAGEMAKER_SUBMIT_DIRECTORY") or job.code_dir)
        return cls(program, job.code_dir, module_dir)

    def install(self) -> None:
        """Downloads the folder and installs its requirements.txt, or the folder itself if it has a setup.py.

        If sagemaker-training is in the image, it does this, and supports S3 and CodeArtifact. Without it,
        the folder must already be in the container.

        Raises:
            ConfigError: The folder is not in the container and sagemaker-training is not installed, or the
                script does not exist.
            subprocess.CalledProcessError: pip failed.
        """
        if importlib.util.find_spec("sagemaker_training") is not None:
            from sagemaker_training import entry_point, files

            files.download_and_extract(self.module_dir, self.code_dir)
            self.check()
            # It does not support dotted names, and installs requirements only for a .py file.
            is_dotted = self._is_module() and not self.program.endswith(".py")
            name = f"{self.program.replace('.', '/')}.py" if is_dotted else self.program
            entry_point.install(name, self.code_dir)
            return
        if os.path.realpath(self.module_dir) != os.path.realpath(self.code_dir):
            raise ConfigError(
                f"[smdp] the code is at {self.module_dir}, which only sagemaker-training can download;"
                " install it in the image (pip install sagemaker-training), or put the code into"
                f" {self.code_dir}"
            )
        self.check()
        pip = [sys.executable, "-m", "pip", "install"]
        if os.path.exists(os.path.join(self.code_dir, "setup.py")):
            subprocess.run([*pip, "."], cwd=self.code_dir, check=True)
        elif os.path.exists(os.path.join(self.code_dir, "requirements.txt")):
            subprocess.run([*pip, "-r", "requirements.txt"], cwd=self.code_dir, check=True)

    def check(self) -> None:
        """Checks that the script exists.

        Raises:
            ConfigError: The script does not exist, or is not in the folder.
        """
        root, path = (
            os.path.realpath(self.code_dir),
            os.path.realpath(os.path.join(self.code_dir, self.program)),
        )
        if self.program.startswith("-") or os.path.commonpath([root, path]) != root:
            raise ConfigError(f"[smdp] the entry script {self.program!r} is not in {self.code_dir}")
        if not os.path.isfile(path) and not self._is_module():
            there = sorted(os.listdir(root))[:20] if os.path.isdir(root) else []
            raise ConfigError(
                f"[smdp] there is no entry script {self.program!r} in {self.code_dir}; the folder"
                f" contains {', '.join(there) or 'nothing'}"
            )

    def command(self, arguments: list[str]) -> list[str]:
        """Returns the command that every rank executes in the folder.

        Raises:
            ConfigError: The program is not executable, and its permissions cannot be changed.
        """
        path = os.path.join(self.code_dir, self.program)
        if self._is_module():
            return [sys.executable, "-u", "-m", self.program.removesuffix(".py"), *arguments]
        if self.program.endswith(".py"):
            return [sys.executable, "-u", path, *arguments]
        if not os.access(path, os.X_OK):  # chmod only if needed: the folder may be read-only
            try:
                os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
            except OSError as error:
                raise ConfigError(
                    f"[smdp] {path} is not executable, and smdp cannot change its permissions"
                    f" ({error.strerror}); run chmod +x on the file before you upload it"
                ) from None
        # Started by a shell, because a script without a "#!" line can only be run by one.
        return ["/bin/sh", "-c", 'exec "$0" "$@"', path, *arguments]

    def _is_module(self) -> bool:
        """Returns whether to use `python -m`: for a dotted name, or if the folder is a distribution."""
        if self.program.endswith(".sh"):
            return False
        if os.path.exists(os.path.join(self.code_dir, "setup.py")):
            return True
        path = os.path.join(self.code_dir, *self.program.split("."))
        is_there = os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__main__.py"))
        return is_there and not os.path.isfile(os.path.join(self.code_dir, self.program))
