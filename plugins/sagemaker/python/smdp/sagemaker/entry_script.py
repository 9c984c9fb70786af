"""The user's script: where it comes from, what it needs, and the command that runs it."""

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
    """A script in a folder.

    Attributes:
        program: Its path in the folder, a .py or .sh file, a program, or a module.
        code_dir: The folder.
        module_dir: Where the folder came from: itself, an archive, or an address in S3.
    """

    program: str
    code_dir: str
    module_dir: str

    @classmethod
    def find(cls, job: Job, environ: Mapping[str, str]) -> EntryScript:
        """Read which script is meant.

        Raises:
            ConfigError: None is.
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
        """Fetch the folder, and install its requirements.txt, or itself if it has a setup.py.

        With sagemaker-training in the image that does it, from S3 and CodeArtifact too; without, the folder
        must be there.

        Raises:
            ConfigError: The folder is elsewhere.
            subprocess.CalledProcessError: pip failed.
        """
        if importlib.util.find_spec("sagemaker_training") is not None:
            from sagemaker_training import entry_point, files

            files.download_and_extract(self.module_dir, self.code_dir)
            self.check()
            # It knows no dotted names, and looks at the requirements of files that end in .py.
            is_dotted = self._is_module() and not self.program.endswith(".py")
            name = f"{self.program.replace('.', '/')}.py" if is_dotted else self.program
            entry_point.install(name, self.code_dir)
            return
        if os.path.realpath(self.module_dir) != os.path.realpath(self.code_dir):
            raise ConfigError(
                f"[smdp] the code is at {self.module_dir}, which only sagemaker-training can fetch; install"
                f" it in the image (pip install sagemaker-training), or put the code into {self.code_dir}"
            )
        self.check()
        pip = [sys.executable, "-m", "pip", "install"]
        if os.path.exists(os.path.join(self.code_dir, "setup.py")):
            subprocess.run([*pip, "."], cwd=self.code_dir, check=True)
        elif os.path.exists(os.path.join(self.code_dir, "requirements.txt")):
            subprocess.run([*pip, "-r", "requirements.txt"], cwd=self.code_dir, check=True)

    def check(self) -> None:
        """See whether the script is there.

        Raises:
            ConfigError: It is not, or not in the folder.
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
                f"[smdp] there is no entry script {self.program!r} in {self.code_dir}; there is"
                f" {', '.join(there) or 'nothing'}"
            )

    def command(self, arguments: list[str]) -> list[str]:
        """Give what a rank executes, in the folder.

        Raises:
            ConfigError: It is a program that may not be executed.
        """
        path = os.path.join(self.code_dir, self.program)
        if self._is_module():
            return [sys.executable, "-u", "-m", self.program.removesuffix(".py"), *arguments]
        if self.program.endswith(".py"):
            return [sys.executable, "-u", path, *arguments]
        if not os.access(path, os.X_OK):  # the folder may be read-only, and the file fine as it is
            try:
                os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
            except OSError as error:
                raise ConfigError(
                    f"[smdp] {path} has no permission to be executed, and it cannot be given"
                    f" ({error.strerror}); chmod +x the file where it comes from"
                ) from None
        # A shell, as scripts without a first line "#!" are run by one.
        return ["/bin/sh", "-c", 'exec "$0" "$@"', path, *arguments]

    def _is_module(self) -> bool:
        """A folder that is a distribution is run as `python -m`, and so is a dotted name."""
        if self.program.endswith(".sh"):
            return False
        if os.path.exists(os.path.join(self.code_dir, "setup.py")):
            return True
        path = os.path.join(self.code_dir, *self.program.split("."))
        is_there = os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__main__.py"))
        return is_there and not os.path.isfile(os.path.join(self.code_dir, self.program))
