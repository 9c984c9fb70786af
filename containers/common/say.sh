# shellcheck shell=bash
# How the scripts of the images talk; sourced by them.

say() { printf '[smdp] %s\n' "$*" >&2; }

# fail STATUS MESSAGE: the status is 64 for a wrong command line, 78 for a wrong set-up, as sysexits.h has them.
fail() {
  say "${@:2}"
  exit "$1"
}
