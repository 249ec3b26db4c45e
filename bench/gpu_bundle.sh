#!/usr/bin/env bash
# Builds and collects what gpu_check.sh needs on a machine with an H100 or H200 and Python but without Cadre's build
# dependencies: programs, CUDA tests, benchmarks, their shared libraries and data.
#
#   bench/gpu_bundle.sh [--build DIR] OUT.tar.xz
#   bench/gpu_bundle.sh [--build DIR] FOLDER
#
#   --build DIR  build folder (default: build-gpu, in the root of the repository). Only the necessary targets are
#                built, with machine code for sm_90a alone. A folder that is configured otherwise is refused
#   OUT.tar.xz   an archive, which Python's standard library unpacks. It may have 52 MB, and 60 MiB together with the
#                tracked files of the repository
#   FOLDER       a folder instead, of any size
#
# The bundle contains neither cuBLAS, cuDNN and NCCL, which the GPU machine has in a toolkit or in Python
# wheels, nor glibc, libstdc++ and the driver.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build-gpu
architectures=90a-real

fail() {
  echo "gpu_bundle: $*" >&2
  exit 1
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --build) [ $# -ge 2 ] || fail "--build requires a folder"; build=$2; shift 2 ;;
    -*) fail "unknown option '$1' (see --help)" ;;
    *) break ;;
  esac
done
[ $# = 1 ] || fail "requires the path of the bundle (see --help)"
case $1 in
  *.tar.xz) ;;
  *.tar* | *.tgz | *.zip) fail "$1: an archive ends in .tar.xz, which Python unpacks without other programs" ;;
  *) [ ! -e "$1" ] || [ -f "$1/bundle.json" ] || fail "$1 exists and is not a bundle" ;;
esac

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" | head -n 1; }

# Configuring the folder again with other values would build everything in it again.
require() {
  local value
  value=$(cached "$1")
  [ "$value" = "$2" ] || fail "$build has $1=$value, but a bundle requires $2: name another folder with --build"
}
if [ -f "$build/CMakeCache.txt" ]; then
  require CADRE_CUDA_ARCHITECTURES "$architectures"
  require CMAKE_BUILD_TYPE Release
  require CADRE_SANITIZE ""
elif [ -n "$(ls -A "$build" 2>/dev/null)" ]; then
  fail "$build is not a build folder"
fi

bash "$root/deploy/build.sh" --dir "$build" --tests --cuda ON --architectures "$architectures" gpu_programs
exec python3 -B "$root/bench/gpu_bundle.py" "$root" "$build" "$1"
