#!/usr/bin/env bash
# Configures and builds Cadre. Requires only what deploy/setup.sh installs.
#
#   deploy/build.sh [--dir DIR] [--type TYPE] [--tests] [--sanitize LIST] [--cuda MODE]
#                   [--architectures LIST] [TARGET ...]
#
#   --dir DIR        build folder (default: build, in the root of the repository)
#   --type TYPE      Release (default), RelWithDebInfo or Debug
#   --tests          include the tests, which require deploy/setup.sh test
#   --sanitize LIST  either 'address,undefined' or 'thread'
#   --cuda MODE      ON: with the CUDA back end, which requires deploy/setup.sh cuda; OFF: without
#                    it; AUTO (default): with it if a complete toolkit is found
#   --architectures LIST  GPU architectures to compile kernels for, separated by semicolons (default: those of a
#                    new build folder, cmake/cuda.cmake)
#   TARGET           target to build (default: everything configured)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/build
type=Release
tests=OFF
sanitize=
cuda=AUTO
architectures=

fail() {
  echo "build: $*" >&2
  exit 2
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

# A file that includes gRPC takes up to 1.2 GB to compile; more jobs than fit into memory would swap.
jobs() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  by_memory=$((memory_kib / 1250000))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

while [ $# -gt 0 ]; do
  case $1 in
    --dir | --type | --sanitize | --cuda | --architectures) [ $# -ge 2 ] || fail "$1 requires a value (see --help)" ;;&
    --dir) dir=$2; shift 2 ;;
    --type) type=$2; shift 2 ;;
    --sanitize) sanitize=$2; shift 2 ;;
    --cuda) cuda=$2; shift 2 ;;
    --architectures) architectures=$2; shift 2 ;;
    --tests) tests=ON; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) fail "unknown option '$1' (see --help)" ;;
    *) break ;;
  esac
done

case $cuda in
  AUTO | ON | OFF) ;;
  *) fail "--cuda must be ON, OFF or AUTO, not '$cuda'" ;;
esac

configuration=(-G Ninja -DCADRE_UNITY=ON "-DCMAKE_BUILD_TYPE=$type" "-DCADRE_TESTS=$tests"
  "-DCADRE_SANITIZE=$sanitize" "-DCADRE_CUDA=$cuda")
if [ -n "$architectures" ]; then configuration+=("-DCADRE_CUDA_ARCHITECTURES=$architectures"); fi
if [ "$cuda" != OFF ] && toolkit=$(bash "$root/deploy/setup.sh" --cuda-root 2>/dev/null); then
  configuration+=("-DCADRE_CUDA_ROOT=$toolkit")
fi
if command -v ccache >/dev/null; then
  configuration+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # Checkouts in different folders share the cache. Depend mode takes the included files from the
  # compiler instead of a separate preprocessor run, which saves about 10 % of a first build.
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake -S "$root" -B "$dir" "${configuration[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  echo "build: CMake could not configure $dir" >&2
  exit 1
fi

targets=()
for target in "$@"; do targets+=(--target "$target"); done
cmake --build "$dir" --parallel "$(jobs)" "${targets[@]}"
