#!/usr/bin/env bash
# Builds the Debian packages cadre, cadre-daemons and cadre-worker, for each one with its symbols (.ddeb)
# and a bill of materials (.spdx.json). Requires what deploy/setup.sh build installs.
#
#   deploy/package.sh [--dir DIR] [--out DIR] [--cuda MODE]
#
#   --dir DIR    build folder (default: build, in the root of the repository)
#   --out DIR    folder for the packages (default: the build folder)
#   --cuda MODE  as for deploy/build.sh
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/build
out=
cuda=AUTO

fail() {
  echo "package: $*" >&2
  exit 2
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

while [ $# -gt 0 ]; do
  case $1 in
    --dir | --out | --cuda) [ $# -ge 2 ] || fail "$1 requires a value (see --help)" ;;&
    --dir) dir=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --cuda) cuda=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
done
for tool in dpkg-shlibdeps help2man; do
  command -v "$tool" >/dev/null || fail "$tool is required: deploy/setup.sh build"
done

out=${out:-$dir}
# A build folder with tests keeps them.
tests=()
if grep -qs '^CADRE_TESTS:BOOL=ON$' "$dir/CMakeCache.txt"; then tests=(--tests); fi
bash "$root/deploy/build.sh" --dir "$dir" "${tests[@]}" --cuda "$cuda" \
  cadre cadre-coordinator cadre-aggregator cadre-worker manuals
cpack --config "$dir/CPackConfig.cmake" -B "$out"
for package in "$out"/cadre*_*.deb; do
  bash "$root/deploy/sbom.sh" deb "$package" >"${package%.deb}.spdx.json"
done
