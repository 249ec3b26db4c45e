#!/usr/bin/env bash
# Builds everything and runs every test: installs what is missing, configures, builds, then the fast
# tests side by side and the slow ones one after another. The last line says how many passed.
#
#   tests/run.sh [--filter REGEX] [--sanitize LIST] [--fuzz-seconds N] [--no-cuda] [--skip-setup]
#
#   --filter REGEX   only tests whose CTest name matches (`ctest -N` in the build folder lists them)
#   --sanitize LIST  address,undefined or thread; builds into build-LIST and leaves build/ alone
#   --fuzz-seconds N how long each reader of foreign files is fed with mutated ones (default 3)
#   --no-cuda        leaves the CUDA back end out, and with it the download of a toolkit; without this
#                    a back end that cannot be built is an error. No GPU is needed: the tests that
#                    need one are listed at the end as skipped, with their reasons
#   --skip-setup     installs nothing
#
# Exit code 0 only when at least one test ran and none failed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
filter=
sanitize=
fuzz_seconds=3
cuda=ON
setup=yes

fail() {
  echo "tests: $*" >&2
  exit 2
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

step() { printf 'tests: [%3d s] %s\n' "$SECONDS" "$*"; }

while [ $# -gt 0 ]; do
  case $1 in
    --filter | --sanitize | --fuzz-seconds) [ $# -ge 2 ] || fail "$1 needs a value (see --help)" ;;&
    --filter) filter=$2; shift 2 ;;
    --sanitize) sanitize=$2; shift 2 ;;
    --fuzz-seconds) fuzz_seconds=$2; shift 2 ;;
    --no-cuda) cuda=OFF; shift ;;
    --skip-setup) setup=; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
done

case $sanitize in
  '') build=$root/build type=Release ;;
  address,undefined | thread) build=$root/build-${sanitize/,/-} type=RelWithDebInfo ;;
  *) fail "--sanitize takes address,undefined or thread, not '$sanitize'" ;;
esac

[[ $fuzz_seconds =~ ^[1-9][0-9]{0,4}$ ]] || fail "--fuzz-seconds takes seconds, not '$fuzz_seconds'"

if [ -n "$setup" ]; then
  step "1 of 4: installing what the build and the tests need"
  groups=(all)
  [ "$cuda" = OFF ] || groups+=(cuda)
  bash deploy/setup.sh "${groups[@]}"
fi

step "2 of 4: building everything into ${build#"$root"/} (minutes the first time)"
bash deploy/build.sh --dir "$build" --type "$type" --tests --sanitize "$sanitize" --cuda "$cuda"
# Known to CTest only: nothing is built again.
cmake -DCADRE_FUZZ_SECONDS="$fuzz_seconds" "$build" >/dev/null

# An error report ends the process, so that CTest sees it as a failure.
export ASAN_OPTIONS=halt_on_error=1:detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$root/tests/sanitizer/thread.supp

results=$build/test-results
rm -rf "$results"
mkdir -p "$results/cases"
# Every GoogleTest program also writes its cases here: CTest keeps no reason why one was skipped.
export GTEST_OUTPUT=xml:$results/cases/

# Runs the tests that the given CTest arguments choose; failures are counted at the end.
run_tests() {
  local name=$1
  shift
  ctest --test-dir "$build" --output-on-failure --no-tests=ignore \
    --output-junit "$results/$name.xml" \
    --test-output-size-passed 20000 --test-output-truncation head \
    ${filter:+--tests-regex "$filter"} "$@" </dev/null || true
}

step "3 of 4: the fast tests"
run_tests fast --label-regex '^fast$' --parallel 2
step "4 of 4: the slow tests, with real processes and real training"
run_tests slow --label-exclude '^fast$'

step "done"
exec python3 tests/count_results.py --cases "$results/cases" "$results"/*.xml
