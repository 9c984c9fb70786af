# shellcheck shell=bash
# Messages of the scripts of the images, which source this file.

say() { printf '[smdp] %s\n' "$*" >&2; }

# fail STATUS MESSAGE: exits with 64 for a wrong command line or 78 for a wrong configuration, as in sysexits.h.
fail() {
  say "${@:2}"
  exit "$1"
}
