# shellcheck shell=bash
# Checks what a base image must have, and installs what may be missing. Sourced while an image is built.

# apt_install PACKAGE...: installs only these and what they require, and leaves no lists or caches in the layer.
apt_install() {
  command -v apt-get >/dev/null ||
    fail 78 "BASE_IMAGE has no apt-get: the images are built on Debian, Ubuntu and images based on them. This is" \
      "$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-an unknown system}" || echo 'an unknown system')."
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || return
  apt-get install -y -qq --no-install-recommends "$@" </dev/null || return
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/log/apt /var/log/dpkg.log \
    /var/cache/debconf/*-old
}

# python_is_new_enough: succeeds if the first python3 in PATH can run smdp.
python_is_new_enough() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# need_python [headers]: provides a python3 that can create virtual environments; with headers, also its headers.
need_python() {
  local packages=()
  if ! command -v python3 >/dev/null; then
    say "warning: BASE_IMAGE has no python3. The distribution's is installed, which adds about 40 MB and is as old as" \
      "the distribution. To avoid both, use a base image with Python, such as the default one."
    packages+=(python3 python3-venv)
  elif ! python_is_new_enough; then
    refuse_python
  elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    packages+=(python3-venv)
  fi
  if [[ ${1:-} == headers ]] && ! python_has_headers; then
    packages+=(python3-dev)
  fi
  ((${#packages[@]} == 0)) || apt_install "${packages[@]}"
  python_is_new_enough || refuse_python
}

python_has_headers() {
  python3 -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

# need_compiler: provides a C++ compiler that is new enough for smdp, and sets CXX and CC if it is not g++.
need_compiler() {
  local version
  [[ -z ${CXX:-} ]] || return 0 # the base image has chosen a compiler
  command -v g++ >/dev/null || apt_install g++ libc6-dev
  version=$(g++ -dumpversion)
  ((${version%%.*} < 12)) || return 0
  say "g++ of BASE_IMAGE or its distribution is $version, but smdp needs 12 or newer: building with g++-12"
  command -v g++-12 >/dev/null || apt_install g++-12 libc6-dev ||
    fail 78 "g++-12 cannot be installed, see above: use a BASE_IMAGE with a newer distribution, such as the default" \
      "one, or one that sets CXX and CC to a newer compiler."
  export CXX=g++-12 CC=gcc-12
}

refuse_python() {
  fail 78 "python3 of BASE_IMAGE is $(python3 -c 'import platform; print(platform.python_version())')," \
    "but smdp needs 3.10 or newer: use another BASE_IMAGE, such as the default one."
}
