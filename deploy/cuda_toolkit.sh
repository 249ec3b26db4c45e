#!/usr/bin/env bash
# Finds a complete CUDA toolkit, or downloads one as the vendor's Python wheels (about 1.1 GB).
# deploy/setup.sh cuda calls it.
#
#   deploy/cuda_toolkit.sh [--print]
#
#   --print  download nothing; print the folder for -DCADRE_CUDA_ROOT, or fail if there is none
#
# nvcc on the PATH or /usr/local/cuda is used if it is CUDA 12 or newer and has cuBLAS, cuDNN 9 and its
# frontend, NVRTC and NCCL 2.22. Otherwise pip downloads all of them for CUDA 13, using its own
# configuration, into a folder that is laid out as a toolkit. The last line is the folder's path.
#
#   CADRE_CUDA_ROOT     that folder (default: cadre/cuda-13.0 in XDG_CACHE_HOME or ~/.cache)
#   CADRE_CUDA_TOOLKIT  use this toolkit instead of searching for one; `none`: always download
set -euo pipefail

root=${CADRE_CUDA_ROOT:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cadre/cuda-13.0}
machine=$(uname -m)

# Names and versions of the wheels, and the file that also has their hashes.
pinned=$(dirname "$0")/cuda_wheels.txt
mapfile -t wheels < <(sed -n 's/^\([a-z0-9-]*==[0-9.]*\) .*/\1/p' "$pinned")
# Space for the unpacked wheels, and for the largest wheel while it is unpacked.
needed_megabytes=2100

report() { echo "setup: CUDA: $*" >&2; }

fail() {
  report "$*"
  exit 1
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

# Prints the major CUDA version of a folder with a working nvcc, such as 13; 0 for any other folder.
toolkit_major() {
  local major
  major=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p' | head -n 1)
  echo "${major:-0}"
}

usable() {
  [ "$(toolkit_major "$1")" -ge 12 ] && [ -f "$1/include/cuda_runtime_api.h" ]
}

# Prints the folder of the installed toolkit, or nothing.
find_toolkit() {
  local candidate nvcc
  case ${CADRE_CUDA_TOOLKIT:-} in
    '') ;;
    none) return ;;
    *)
      usable "$CADRE_CUDA_TOOLKIT" ||
        fail "CADRE_CUDA_TOOLKIT=$CADRE_CUDA_TOOLKIT has no bin/nvcc of CUDA 12 or newer"
      echo "$CADRE_CUDA_TOOLKIT"
      return
      ;;
  esac
  nvcc=$(command -v nvcc || true)
  for candidate in ${nvcc:+"$(dirname "$(dirname "$(readlink -f "$nvcc")")")"} /usr/local/cuda; do
    if usable "$candidate"; then
      echo "$candidate"
      return
    fi
  done
}

# Prints the value of a macro in a C header; 0 if it is not defined.
macro() {
  local value
  value=$(sed -n "s/^ *# *define  *$2  *\([0-9][0-9]*\).*/\1/p" "$1" | head -n 1)
  echo "${value:-0}"
}

# has_header TOOLKIT HEADER [PREFIX MINIMUM]: whether the toolkit or the system has the header, with
# 100 * PREFIX_MAJOR + PREFIX_MINOR of at least MINIMUM.
has_header() {
  local toolkit=$1 header=$2 prefix=${3:-NONE} minimum=${4:-0} folder
  for folder in "$toolkit/include" /usr/include "/usr/include/$machine-linux-gnu"; do
    if [ -f "$folder/$header" ] && [ $(($(macro "$folder/$header" "${prefix}_MAJOR") * 100 + \
      $(macro "$folder/$header" "${prefix}_MINOR"))) -ge "$minimum" ]; then
      return 0
    fi
  done
  return 1
}

# cuDNN compiles fused attention with NVRTC at run time, so the library is required, not the header.
has_nvrtc() {
  local folder
  for folder in "$1"/{lib64,"targets/$machine-linux/lib"} "/usr/lib/$machine-linux-gnu"; do
    [ ! -f "$folder/libnvrtc.so.$(toolkit_major "$1")" ] || return 0
  done
  return 1
}

# Prints the libraries that the toolkit lacks.
missing_libraries() {
  has_header "$1" cublasLt.h || echo cuBLAS
  has_header "$1" cudnn_version.h CUDNN 900 || echo cuDNN
  has_header "$1" cudnn_frontend.h || echo "cuDNN's frontend"
  has_nvrtc "$1" || echo NVRTC
  has_header "$1" nccl.h NCCL 222 || echo NCCL
}

# Whether the folder holds all wheels.
downloaded() {
  local wheel
  for wheel in "${wheels[@]}"; do
    [ -e "$root/wheels/${wheel/==/-}" ] || return 1
  done
}

check_space() {
  local folder=$root free
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  free=$(($(df -Pk "$folder" | awk 'NR == 2 { print $4 }') / 1024))
  [ "$free" -ge "$needed_megabytes" ] ||
    fail "$folder has $free MB free and the toolkit needs $needed_megabytes: free some space, or set" \
      "CADRE_CUDA_ROOT to another folder"
}

# Installs a wheel, if it has one of the pinned hashes, into the folder $2. The platform tags make the
# result independent of the Python in use.
pip_install() {
  local minor platforms=()
  for minor in 5 12 17 18 24 26 27 28 31 34; do
    platforms+=(--platform "manylinux_2_${minor}_$machine")
  done
  TMPDIR=$(dirname "$root") python3 -m pip install --quiet --disable-pip-version-check --no-input \
    --no-cache-dir --no-compile --progress-bar off --no-deps --only-binary=:all: \
    --implementation cp --python-version 3.11 "${platforms[@]}" \
    --platform "manylinux2014_$machine" --target "$2" --require-hashes \
    --requirement <(grep "^$1 " "$pinned") </dev/null
}

# Adds the toolkit's folders of a wheel to the folder $2. The dist-info marks the wheel as downloaded
# and contains its licences.
add_wheel() {
  local wheel=$1 new=$2 part=$2/part folder name
  pip_install "$wheel" "$part" >"$new/pip.log" 2>&1 || {
    grep -v 'is ignored: it is neither' "$new/pip.log" | tail -n 8 >&2 || true
    fail "pip could not download ${wheel/==/ } (its output is above)"
  }
  find "$part" -name '*.alt.so*' -delete  # a second build of NVRTC, which nothing loads
  for folder in "$part" "$part"/nvidia/*; do
    for name in bin include lib nvvm; do
      [ ! -d "$folder/$name" ] || cp -al "$folder/$name" "$new/"
    done
  done
  mv "$part"/*.dist-info "$new/wheels/${wheel/==/-}"
  rm -rf "$part" "$new/pip.log"
  report "downloaded ${wheel/==/ }"
}

# Builds the folder next to its final path, so that an interruption leaves no incomplete toolkit. The
# lock makes concurrent callers wait for the first one.
download() {
  local new=$root.new.$$ wheel
  python3 -m pip --version >/dev/null 2>&1 ||
    fail "downloading the toolkit requires python3 with pip (Debian: python3-pip)"
  check_space
  mkdir -p "$(dirname "$root")"
  exec 9>"$root.lock"
  flock 9
  ! downloaded || return 0
  # shellcheck disable=SC2064
  trap "rm -rf '$new'" EXIT
  mkdir -p "$new/wheels"
  for wheel in "${wheels[@]}"; do add_wheel "$wheel" "$new"; done
  chmod -R a+x "$new"/bin "$new"/nvvm/bin
  ln -s lib "$new/lib64"  # where nvcc searches
  rm -rf "$root"
  mv -T "$new" "$root"
}

main() {
  local print='' toolkit missing
  case ${1:-} in
    '') ;;
    --print) print=yes ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
  case $machine in
    x86_64 | aarch64) ;;
    *) fail "there is no CUDA toolkit for $machine" ;;
  esac
  toolkit=$(find_toolkit)
  if [ -n "$toolkit" ]; then
    missing=$(missing_libraries "$toolkit" | paste -sd ,)
    if [ -z "$missing" ]; then
      [ -n "$print" ] || report "$toolkit is complete"
      echo "$toolkit"
      return
    fi
    [ -n "$print" ] || report "$toolkit lacks ${missing//,/, }; using CUDA 13 in $root"
  fi
  if ! downloaded; then
    [ -z "$print" ] || fail "no complete toolkit is installed; deploy/setup.sh cuda downloads one"
    download
  fi
  [ -n "$print" ] || report "$root is complete"
  echo "$root"
}

main "$@"
