#!/usr/bin/env bash
# The target sagemaker: SageMaker's toolkit and folders. What both of its SDKs start finds its programs.
set -euo pipefail
here=$(dirname "$0")

"$here/install_packages.py" --file "$here/requirements-sagemaker.txt"
mkdir -p /opt/ml/input/data /opt/ml/model /opt/ml/output /opt/ml/code

# Version 3 of the SDK starts /usr/sbin/sshd itself, before anything of ours: here it first gets the job's key.
dpkg-divert --local --rename --divert /usr/sbin/sshd.smdp --add /usr/sbin/sshd
install -m 0755 "$here/sshd_sagemaker.sh" /usr/sbin/sshd
# Its driver looks for the hosts at the usual port.
sed -i '/^ *Port /d' /etc/ssh/ssh_config.d/smdp.conf
sed -i 's/^Port .*/Port 22/' /opt/smdp/sshd_config
