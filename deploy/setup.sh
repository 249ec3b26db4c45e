#!/usr/bin/env bash
# Installs the Debian packages that Cadre needs. Safe to run again: what is there stays as it is.
#
#   deploy/setup.sh [build|test|bench|runtime|all|cuda] ...
#   deploy/setup.sh --cuda-root
#
#   build     compiler, CMake, libraries with headers, the demo's data set (the default)
#   test      build, GoogleTest, and what the checks call: Python, shellcheck
#   bench     build, and Gloo, which bench_allreduce measures against
#   runtime   only the shared libraries that the built programs load, and the demo's data set
#   all       everything above
#   cuda      a CUDA toolkit with cuBLAS, cuDNN and NCCL: one that is found, and about 1 GB of
#             downloads for what it lacks (`--cuda` is the same; deploy/cuda_toolkit.sh --help)
#
# --cuda-root installs nothing: it prints the folder of that toolkit, for -DCADRE_CUDA_ROOT of CMake.
#
# Runs as root, or as anybody who may use sudo. Debian 12 is what we test on; a newer Debian or
# Ubuntu has the same package names.
set -euo pipefail

data_packages=(dataset-fashion-mnist)

tool_packages=(g++ cmake ninja-build ccache pkg-config ca-certificates procps
  protobuf-compiler protobuf-compiler-grpc)

# Our own libraries first, then what the CMake configs of gRPC (OpenSSL, c-ares, re2, zlib) and
# oneDNN (OpenCL) look for although their Debian packages do not depend on it.
library_packages=(libgrpc++-dev libprotobuf-dev libabsl-dev libgflags-dev libgoogle-glog-dev
  libdnnl-dev libsqlite3-dev zlib1g-dev libisal-dev nlohmann-json3-dev libjpeg62-turbo-dev
  coinor-libcbc-dev libssl-dev libc-ares-dev libre2-dev ocl-icd-opencl-dev opencl-headers)

test_library_packages=(libgtest-dev libgmock-dev)

test_packages=(python3 python3-yaml python3-jsonschema python3-matplotlib shellcheck)

# Rivals to measure against; nothing of Cadre needs them.
bench_packages=(libgloo-dev)

say() { echo "setup: $*"; }

fail() {
  echo "setup: $*" >&2
  exit 1
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "packages are missing and only root can install them: run me as root, or install sudo"
  fi
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 "$@" </dev/null
}

# Runs a command quietly; shows what it said only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    rm -f "$log"
    fail "failed: $*"
  fi
  rm -f "$log"
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Reads package names, prints those that are not installed.
missing() {
  local package
  for package in "$@"; do
    installed "$package" || echo "$package"
  done
}

lists_fresh=
update_lists() {
  [ -z "$lists_fresh" ] || return 0
  say "updating the package lists"
  quietly apt update
  lists_fresh=yes
}

install() {
  local wanted
  mapfile -t wanted < <(missing "$@")
  if [ ${#wanted[@]} = 0 ]; then
    say "all $# packages are there"
    return
  fi
  update_lists
  say "installing ${#wanted[@]} of $# packages: ${wanted[*]}"
  quietly apt install --no-install-recommends "${wanted[@]}"
}

# The packages with the shared libraries behind our -dev packages. Their names carry a version that
# differs from release to release, so we ask apt which ones the -dev packages belong to.
runtime_libraries() {
  apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "${library_packages[@]}" |
    sed -n 's/^ *|\?Depends: \(\(coinor-\)\?lib[^ ]*\)$/\1/p' |
    grep -v -e '-dev$' -e '-bin$' | sort -u
  echo libgomp1
}

install_runtime() {
  local libraries
  update_lists
  mapfile -t libraries < <(runtime_libraries)
  install "${libraries[@]}" "${data_packages[@]}"
}

# pip downloads the toolkit, as the vendor ships it; any Python with pip will do.
install_cuda() {
  python3 -m pip --version >/dev/null 2>&1 || install python3 python3-pip ca-certificates
  bash "$(dirname "$0")/cuda_toolkit.sh"
}

install_build() {
  install "${tool_packages[@]}" "${library_packages[@]}" "${data_packages[@]}" "$@"
}

main() {
  local group
  [ $# -gt 0 ] || set -- build
  for group in "$@"; do
    case $group in
      build | test | bench | runtime | all | cuda | --cuda) ;;
      *) fail "unknown group '$group'; known: build, test, bench, runtime, all, cuda (see --help)" ;;
    esac
  done
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "this system has no apt; install what these packages hold:" \
      "${tool_packages[*]} ${library_packages[*]} ${test_library_packages[*]}"
  fi
  for group in "$@"; do
    case $group in
      build) install_build ;;
      test) install_build "${test_library_packages[@]}" "${test_packages[@]}" ;;
      bench) install_build "${bench_packages[@]}" ;;
      all)
        install_build "${test_library_packages[@]}" "${test_packages[@]}" "${bench_packages[@]}"
        ;;
      runtime) install_runtime ;;
      cuda | --cuda) install_cuda ;;
    esac
  done
}

case ${1:-} in
  -h | --help) usage ;;
  --cuda-root) exec bash "$(dirname "$0")/cuda_toolkit.sh" --print ;;
  *) main "$@" ;;
esac
