#!/usr/bin/env bash
# The builder stage: compiles packages that have no wheel, so that the final stages need no compiler. The wheels are
# written to /wheels.
#
#   build_wheels.sh WHAT...      a source tree or -r FILE, as for `pip wheel`
set -euo pipefail
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR source=say.sh
. "$here/say.sh"
# shellcheck source-path=SCRIPTDIR source=base.sh
. "$here/base.sh"

need_python headers
need_compiler
python3 -m venv /tmp/build
# Without --use-pep517, Debian 12's pip needs the package wheel to build a package without a pyproject.toml.
/tmp/build/bin/pip wheel --use-pep517 --no-cache-dir --no-deps --wheel-dir /wheels "$@"
rm -rf /tmp/build
