#!/usr/bin/env bash
# The target sagemaker: adds SageMaker's toolkit and folders, so that jobs of both SDK versions find their programs.
set -euo pipefail
here=$(dirname "$0")

"$here/install_packages.py" --file "$here/requirements-sagemaker.txt"
mkdir -p /opt/ml/input/data /opt/ml/model /opt/ml/output /opt/ml/code

# Version 3 of the SDK starts /usr/sbin/sshd before any program of smdp. This wrapper sets up the job's key first.
dpkg-divert --local --rename --divert /usr/sbin/sshd.smdp --add /usr/sbin/sshd
install -m 0755 "$here/sshd_sagemaker.sh" /usr/sbin/sshd
# The SDK's driver connects to the default port.
sed -i '/^ *Port /d' /etc/ssh/ssh_config.d/smdp.conf
sed -i 's/^Port .*/Port 22/' /opt/smdp/sshd_config
