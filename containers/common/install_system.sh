#!/usr/bin/env bash
# The final stage: installs Debian packages, the user and the files of the images. WITH_COMPILER=1 adds a C++ compiler.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR source=say.sh
. "$here/say.sh"
# shellcheck source-path=SCRIPTDIR source=base.sh
. "$here/base.sh"

user=mpiuser # with user id 1000 and this home folder, as Kubeflow's MPI runtime expects
prefix=/opt/smdp

[[ ${WITH_COMPILER:=0} == [01] ]] || fail 78 "WITH_COMPILER=$WITH_COMPILER is not valid; allowed: 0, 1."

packages=(tini openssh-server openssh-client ca-certificates)
# Amazon's and NVIDIA's images have their own Open MPI, built for their networks.
command -v mpirun >/dev/null || packages+=(openmpi-bin)
if [[ $WITH_COMPILER == 1 ]]; then
  need_python headers
  command -v g++ >/dev/null || packages+=(g++ libc6-dev)
else
  need_python
fi
apt_install "${packages[@]}"
# Installing the server creates host keys, which would be the same in all containers of the image.
rm -f /etc/ssh/ssh_host_*

# Newer images of Ubuntu have a user with this id.
if taken=$(getent passwd 1000); then
  taken=${taken%%:*}
  [[ $taken == "$user" ]] || usermod --login "$user" --home "/home/$user" --move-home --shell /bin/bash "$taken"
else
  useradd --uid 1000 --user-group --create-home --shell /bin/bash "$user"
fi
usermod --password '*' "$user" # no password, but not locked, because sshd would then refuse keys as well
install -d -o 1000 -g "$(id -g "$user")" /workspace

install -D -m 0755 -t "$prefix" "$here/entrypoint.sh" "$here/ssh_keys.sh" "$here/known_hosts.sh" "$here/check_hosts.py"
install -D -m 0644 -t "$prefix" "$here/say.sh" "$here/limits.sh"
install -D -m 0644 "$here/ssh_config" /etc/ssh/ssh_config.d/smdp.conf
install -D -m 0644 "$here/sshd_config" "$prefix/sshd_config"
# A session of sshd has none of the image's variables, but needs these.
echo "SetEnv PATH=$PATH${LD_LIBRARY_PATH:+ LD_LIBRARY_PATH=$LD_LIBRARY_PATH}" >>"$prefix/sshd_config"
# Kubeflow's MPI runtime starts sshd itself, with this file and the key that it mounts.
printf 'Include %s/sshd_config\nHostKey /home/%s/.ssh/id_rsa\n' "$prefix" "$user" >"/home/$user/.sshd_config"
if [[ -d /etc/openmpi ]]; then
  cat "$here/openmpi-mca-params.conf" >>/etc/openmpi/openmpi-mca-params.conf
fi
