#!/bin/sh
# Cross-builds the reduction kernels and their test for aarch64 and runs them under QEMU, so that NEON is tested on
# x86-64 too. Debian packages: g++-aarch64-linux-gnu qemu-user libgtest-dev.
# Usage: tests/core/neon.sh [gtest arguments]. CXX, QEMU and GTEST_SOURCE may name other tools.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
cxx=${CXX:-aarch64-linux-gnu-g++}
qemu=${QEMU:-qemu-aarch64}
gtest=${GTEST_SOURCE:-/usr/src/googletest/googletest}

for tool in "$cxx" "$qemu"; do
  if ! command -v "$tool" >/dev/null; then
    echo "neon.sh: $tool is missing (apt-get install g++-aarch64-linux-gnu qemu-user libgtest-dev)" >&2
    exit 1
  fi
done

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

compile() {
  "$cxx" -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$root/core/include" -I"$root/core/src" "$@"
}

# The options of core/src/reduce/CMakeLists.txt.
for kernel in generic neon; do
  compile -O3 -ffp-contract=off -fno-fast-math -c "$root/core/src/reduce/$kernel.cpp" -o "$build/$kernel.o"
done
for file in reduce streamed; do
  compile -O2 -c "$root/core/src/reduce/$file.cpp" -o "$build/$file.o"
done
compile -O2 -c "$root/core/src/common/dtype.cpp" -o "$build/dtype.o"
compile -O1 -ffp-contract=off -isystem "$gtest/include" -c "$root/tests/core/reduce_test.cpp" -o "$build/reduce_test.o"
for part in gtest-all gtest_main; do
  "$cxx" -std=c++20 -w -I"$gtest/include" -I"$gtest" -c "$gtest/src/$part.cc" -o "$build/$part.o"
done
"$cxx" -static "$build"/*.o -pthread -o "$build/reduce_test"
"$qemu" "$build/reduce_test" "$@"
