#!/usr/bin/env bash
# The entry point of every container, which tini starts.
#
#   entrypoint.sh COMMAND [ARGUMENT...]          replaces this script by COMMAND, so that it gets the signals
#   entrypoint.sh --sshd COMMAND [ARGUMENT...]   the same, with sshd in the background for the ranks of other hosts
#   entrypoint.sh sshd                           runs only sshd, on a host that waits for mpirun's ranks
set -euo pipefail
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR source=say.sh
. "$here/say.sh"
# shellcheck source-path=SCRIPTDIR source=limits.sh
. "$here/limits.sh"

examples="\`smdp run -n RANKS train.py\`, \`torchrun --nproc-per-node RANKS train.py\` or \`mpirun -n RANKS python -m \
mpi4py train.py\`; \`sshd\` waits for the ranks of an mpirun elsewhere, \`bash\` is a shell"

start_sshd() { # [-D]: in the foreground, replacing this script
  local key
  id -un >/dev/null 2>&1 ||
    fail 78 "user $(id -u) has no entry in /etc/passwd, so sshd cannot let it in: start the container as user 1000."
  key=$("$here/ssh_keys.sh")
  ((EUID != 0)) || mkdir -p /run/sshd
  if [[ ${1:-} == -D ]]; then
    exec /usr/sbin/sshd -D -e -f "$here/sshd_config" -h "$key"
  fi
  /usr/sbin/sshd -f "$here/sshd_config" -h "$key"
}

wants_sshd=0
if [[ ${1:-} == --sshd ]]; then
  wants_sshd=1
  shift
fi
case ${1:-} in
  '') fail 64 "the container was started without a command, so no rank runs. Add one after the image: $examples." ;;
  -*) fail 64 "$1 is not a command; the only option of this container is --sshd. Add a command first: $examples." ;;
esac

warn_shm /dev/shm
warn_memlock "$(ulimit -l)" /sys/class/infiniband

if [[ $1 == sshd ]]; then
  (($# == 1)) || fail 64 "sshd takes no arguments here, but got: ${*:2}. Its settings are in $here/sshd_config."
  start_sshd -D
fi
if ! command -v "$1" >/dev/null; then
  case $1 in
    *.py) fail 127 "$1 is a script, not a program: start its ranks with \`smdp run -n RANKS $*\`." ;;
    *) fail 127 "the program $1 does not exist in this image (PATH=$PATH). Commands: $examples." ;;
  esac
fi
((!wants_sshd)) || start_sshd
case $(basename "$1") in
  mpirun | mpiexec | orterun | prterun) "$here/check_hosts.py" "$@" ;;
esac
exec "$@"
