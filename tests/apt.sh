#!/usr/bin/env bash
# Install Debian packages that a tox environment needs; does nothing where they are present.
#
#   tests/apt.sh [--optional] package...
#
# --optional: go on without them where they cannot be installed. On other distributions the packages are taken
# to be there: what is missing fails where it is used.
set -euo pipefail

is_optional=0
if [[ ${1:-} == --optional ]]; then
  is_optional=1
  shift
fi

give_up() {
  echo "tests/apt.sh: $1 (install by hand: ${missing[*]})" >&2
  exit $((1 - is_optional))
}

command -v dpkg-query >/dev/null || exit 0
missing=()
for package in "$@"; do
  if [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) != *' installed' ]]; then
    missing+=("$package")
  fi
done
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || give_up "neither root nor sudo"
  sudo -n true 2>/dev/null || give_up "sudo wants a password"
  as_root=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq || echo "tests/apt.sh: apt-get update failed; trying with the old lists" >&2
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" || give_up "apt-get install failed"
