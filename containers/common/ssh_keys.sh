#!/usr/bin/env bash
# Prints the path of the job's private key, and creates a key if none is mounted.
#
# All containers of a job use the same key, as host key and as user key. On SageMaker, it may come from an input channel
# named ssh.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=say.sh
. "$(dirname "$0")/say.sh"

directory=$HOME/.ssh
channel=${SAGEMAKER_BASE_DIR:-/opt/ml}/input/data/ssh

# find_key DIRECTORY: prints the first private key in it, in ssh's order of preference.
find_key() {
  local name
  for name in id_ed25519 id_ecdsa id_rsa; do
    if [[ -e $1/$name ]]; then
      echo "$1/$name"
      return
    fi
  done
}

make_key() {
  mkdir -p "$directory" && chmod 700 "$directory" && ssh-keygen -q -t ed25519 -N '' -C 'made at start' -f "$1"
}

key=$(find_key "$directory")
if [[ -z $key ]]; then
  given=$(find_key "$channel")
  if [[ -n $given ]]; then
    install -d -m 0700 "$directory"
    key=$directory/$(basename "$given")
    install -m 0600 "$given" "$key"
    [[ ! -e $given.pub ]] || install -m 0644 "$given.pub" "$key.pub"
  fi
fi
if [[ -z $key ]]; then
  key=$directory/id_ed25519
  make_key "$key" >&2 ||
    fail 78 "no key is mounted at $directory, and user $(id -u) cannot create one there: mount a key pair, or make" \
      "the directory writable."
  say "warning: no key is mounted at $directory, so this container created its own: only mpirun inside of it can" \
    "log in. For several containers, create a key with \`ssh-keygen -t ed25519 -N '' -f keys/id_ed25519\` and mount" \
    "the folder keys there in all of them."
fi
[[ -r $key ]] ||
  fail 78 "user $(id -u) may not read the mounted key $key ($(stat -c 'owner %u, mode %a' "$key")): make that user" \
    "its owner, or start the container as its owner (docker run --user)."
mode=$(stat -c %a "$key")
# ssh checks the mode only of its user's files: mounted secrets belong to root and are readable by a group.
if [[ $(stat -c %u "$key") == "$(id -u)" && $mode != *00 ]]; then
  fail 78 "the mounted key $key is accessible to others (mode $mode), so ssh rejects it: run chmod 600 on it before" \
    "you mount it."
fi
if [[ ! -r $key.pub ]]; then
  ssh-keygen -y -f "$key" 2>/dev/null >"$key.pub" ||
    fail 78 "$key.pub is missing and cannot be written: mount it next to the key (\`ssh-keygen -y -f KEY > KEY.pub\`)."
fi
echo "$key"
