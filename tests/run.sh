#!/usr/bin/env bash
# Installs missing packages, builds everything and runs every test: the fast tests, then the slow
# tests, two at a time. The last line counts the tests that passed, failed and were skipped; the
# skipped tests are listed before it, with reasons.
#
#   tests/run.sh [--filter REGEX] [--sanitize LIST] [--fuzz-seconds N] [--cuda | --no-cuda]
#                [--skip-setup]
#
#   --filter REGEX   only tests whose CTest name matches (`ctest -N` in the build folder lists them)
#   --sanitize LIST  address,undefined or thread; builds into build-LIST instead of build
#   --fuzz-seconds N duration of fuzzing for each file reader (default 3)
#   --cuda           require the CUDA back end; without an installed toolkit this downloads 1.1 GB
#   --no-cuda        do not build the CUDA back end; the default is to build it if a toolkit is
#                    installed. Building it needs no GPU; tests that need a GPU are skipped without one
#   --skip-setup     install nothing
#
# Exits with 0 only if at least one test passed and none failed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
filter=
sanitize=
fuzz_seconds=3
cuda=AUTO
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
    --filter | --sanitize | --fuzz-seconds) [ $# -ge 2 ] || fail "$1 requires a value (see --help)" ;;&
    --filter) filter=$2; shift 2 ;;
    --sanitize) sanitize=$2; shift 2 ;;
    --fuzz-seconds) fuzz_seconds=$2; shift 2 ;;
    --cuda) cuda=ON; shift ;;
    --no-cuda) cuda=OFF; shift ;;
    --skip-setup) setup=; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
done

case $sanitize in
  '') build=$root/build type=Release ;;
  address,undefined | thread) build=$root/build-${sanitize/,/-} type=RelWithDebInfo ;;
  *) fail "--sanitize must be address,undefined or thread, not '$sanitize'" ;;
esac

[[ $fuzz_seconds =~ ^[1-9][0-9]{0,4}$ ]] || fail "--fuzz-seconds must be a number of seconds, not '$fuzz_seconds'"

if [ -n "$setup" ]; then
  step "1 of 4: installing missing packages"
  groups=(all)
  [ "$cuda" != ON ] || groups+=(cuda)
  bash deploy/setup.sh "${groups[@]}"
  # With this variable a test fails, instead of being skipped, if a program that setup.sh installs is not found.
  export CADRE_REQUIRE_TOOLS=1
fi

step "2 of 4: building everything into ${build#"$root"/} (minutes the first time)"
bash deploy/build.sh --dir "$build" --type "$type" --tests --sanitize "$sanitize" --cuda "$cuda"
# Only CTest uses the number, so nothing is rebuilt.
cmake_output=$(cmake -DCADRE_FUZZ_SECONDS="$fuzz_seconds" "$build")

# An error report ends the process, so that CTest counts it as a failure.
export ASAN_OPTIONS=halt_on_error=1:detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$root/tests/sanitizer/thread.supp

results=$build/test-results
rm -rf "$results"
mkdir -p "$results/cases"
# GoogleTest programs write their cases here, because CTest does not record why a case was skipped.
export GTEST_OUTPUT=xml:$results/cases/

# Runs the tests that the CTest arguments select. count_results.py reports failures at the end.
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
run_tests slow --label-exclude '^fast$' --parallel 2

step "done"
sed -n 's/^-- CUDA back end: not built, /skipped: CUDA back end: /p' <<<"$cmake_output"
exec python3 tests/count_results.py --cases "$results/cases" "$results"/*.xml
