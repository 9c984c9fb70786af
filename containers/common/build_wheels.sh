#!/usr/bin/env bash
# The builder stage: compile what has no wheel, so that the final stages need no compiler. The wheels lie in /wheels.
#
#   build_wheels.sh WHAT...      as for `pip wheel`: a source tree, or -r FILE
set -euo pipefail
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR source=say.sh
. "$here/say.sh"
# shellcheck source-path=SCRIPTDIR source=base.sh
. "$here/base.sh"

need_python headers
need_compiler
python3 -m venv /tmp/build
# pip of Debian 12 would build what has no pyproject.toml by a wheel package that is not there.
/tmp/build/bin/pip wheel --use-pep517 --no-cache-dir --no-deps --wheel-dir /wheels "$@"
rm -rf /tmp/build
