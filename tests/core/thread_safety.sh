#!/usr/bin/env bash
# Checks with clang that what a mutex guards is touched under that mutex alone, see core/src/common/thread_annotations.h.
# Compiles no code, and only folders that have mutexes; the files of a folder together, which takes half the time.
#
#   tests/core/thread_safety.sh
set -euo pipefail
cd "$(dirname "$0")/../../core"

if ! command -v clang++ >/dev/null; then
  echo "tests/core/thread_safety.sh: there is no clang++, so nothing has been checked: install clang" >&2
  exit 1
fi

check() {
  clang++ -std=c++20 -fsyntax-only -Iinclude -Isrc '-DSMDP_VERSION=""' -Wthread-safety -Wthread-safety-beta -Werror -x c++ "$@"
}

# It must find what is wrong.
touch_unguarded='
#include "common/mutex.h"
struct Shared {
  smdp::Mutex mutex;
  int value SMDP_GUARDED_BY(mutex) = 0;
};
int look(Shared& shared) { return shared.value; }'
if found=$(check - <<<"$touch_unguarded" 2>&1) || [[ $found != *"requires holding mutex 'shared.mutex'"* ]]; then
  echo "tests/core/thread_safety.sh: clang does not find a field that is read without its mutex: $found" >&2
  exit 1
fi

# What clang cannot follow must not come back.
if unknown=$(grep -rnE 'std::((recursive_|timed_|shared_)*mutex|(lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable)\b)' \
  include src --include '*.h' --include '*.cpp' | grep -v '^src/common/mutex.h:'); then
  printf '%s\n' "$unknown" "tests/core/thread_safety.sh: use the mutexes, locks and conditions of common/mutex.h" >&2
  exit 1
fi

check_folder() {
  printf '#include "%s"\n' "$1"/*.cpp | check -
}
export -f check check_folder
grep -rl --include '*.cpp' --include '*.h' 'common/mutex.h' src | xargs -n 1 dirname | sort -u |
  xargs -P "$(nproc)" -I {} bash -c 'check_folder {}'
echo "the locks of $(grep -rl 'SMDP_GUARDED_BY(' src | wc -l) files are held where they have to be"
