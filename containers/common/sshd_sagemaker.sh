#!/usr/bin/env bash
# The sshd that SageMaker's drivers start (/usr/sbin/sshd -D), with the settings of the images and the job's key.
set -euo pipefail
key=$(/opt/smdp/ssh_keys.sh)
mkdir -p /run/sshd
exec /usr/sbin/sshd.smdp -f /opt/smdp/sshd_config -h "$key" "$@"
