#!/usr/bin/env bash
# sshd as SageMaker's drivers start it (/usr/sbin/sshd -D): with the settings of the images and the key of the job.
set -euo pipefail
key=$(/opt/smdp/ssh_keys.sh)
mkdir -p /run/sshd
exec /usr/sbin/sshd.smdp -f /opt/smdp/sshd_config -h "$key" "$@"
