#!/usr/bin/env bash
# Prints the known host keys for ssh. Every container of a job has the job's key.
for public in "$HOME"/.ssh/id_*.pub; do
  [[ ! -r $public ]] || printf '* %s\n' "$(cut -d' ' -f1,2 "$public")"
done
