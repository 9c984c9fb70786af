# shellcheck shell=bash
# What a base image must bring, and what is added where it may be missing; sourced while an image is built.

# apt_install PACKAGE...: nothing that was not asked for, and no lists or caches left in the layer.
apt_install() {
  command -v apt-get >/dev/null ||
    fail 78 "BASE_IMAGE has no apt-get: the images are built on Debian, Ubuntu and images made of them. This is" \
      "$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-no known system}" || echo 'no known system')."
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || return
  apt-get install -y -qq --no-install-recommends "$@" </dev/null || return
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/log/apt /var/log/dpkg.log \
    /var/cache/debconf/*-old
}

# python_is_new_enough: whether the first python3 in PATH can run smdp.
python_is_new_enough() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# need_python [headers]: a python3 that makes virtual environments; with headers, one that compiles against itself.
need_python() {
  local packages=()
  if ! command -v python3 >/dev/null; then
    say "warning: BASE_IMAGE has no python3; taking the distribution's, which adds about 40 MB and is as old as the" \
      "distribution. A base image with Python, such as the default one, avoids both."
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

# need_compiler: a C++ compiler that is new enough for smdp; named by CXX and CC where g++ is another one.
need_compiler() {
  local version
  [[ -z ${CXX:-} ]] || return 0 # the base has made its choice
  command -v g++ >/dev/null || apt_install g++ libc6-dev
  version=$(g++ -dumpversion)
  ((${version%%.*} < 12)) || return 0
  say "g++ of BASE_IMAGE or its distribution is $version, smdp needs 12 or newer: building with g++-12"
  command -v g++-12 >/dev/null || apt_install g++-12 libc6-dev ||
    fail 78 "g++-12 cannot be installed, see above: take a BASE_IMAGE of a newer distribution, such as the default" \
      "one, or one that names a newer compiler by CXX and CC."
  export CXX=g++-12 CC=gcc-12
}

refuse_python() {
  fail 78 "python3 of BASE_IMAGE is $(python3 -c 'import platform; print(platform.python_version())')," \
    "smdp needs 3.10 or newer: take another BASE_IMAGE, such as the default one."
}
