#!/usr/bin/env bash
# Finds a CUDA toolkit with cuBLAS, cuDNN and NCCL, and gets what is missing as the vendor's Python
# wheels. deploy/setup.sh cuda calls it. Safe to run again: what is there stays as it is.
#
#   deploy/cuda_toolkit.sh [--print]
#
#   --print  gets nothing; prints the folder for -DCADRE_CUDA_ROOT, or says what is missing
#
# A toolkit of CUDA 12 or newer is used as it is: nvcc on the PATH, or /usr/local/cuda. Libraries that
# it lacks, or all of it, are downloaded by pip, with pip's own configuration, into a folder with the
# layout of a toolkit. The last line says which folder CMake is to be told of.
#
#   CADRE_CUDA_ROOT     that folder (default: cadre/cuda-13.0 in XDG_CACHE_HOME or ~/.cache)
#   CADRE_CUDA_TOOLKIT  the toolkit to use instead of looking for one; `none`: use none
set -euo pipefail

root=${CADRE_CUDA_ROOT:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cadre/cuda-13.0}
machine=$(uname -m)

# Wheels: piece, package, version, megabytes when unpacked. The pieces are what a toolkit is asked
# for below; all wheels are of one CUDA version.
wheels='
compiler nvidia-cuda-nvcc 13.0.88 115
compiler nvidia-nvvm 13.0.88 80
compiler nvidia-cuda-crt 13.0.88 2
compiler nvidia-cuda-runtime 13.0.96 15
compiler nvidia-cuda-cccl 13.0.85 25
cublas nvidia-cublas 13.1.0.3 575
cudnn nvidia-cudnn-cu13 9.19.0.56 480
nvrtc nvidia-cuda-nvrtc 13.0.88 120
frontend nvidia-cudnn-frontend 1.18.0 10
nccl nvidia-nccl-cu13 2.28.9 210
'

say() { echo "setup: $*" >&2; }

fail() {
  say "$*"
  exit 1
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

# The number that a C header gives to a macro; 0 where there is none.
macro() {
  local value
  value=$(sed -n "s/^ *# *define  *$2  *\([0-9][0-9]*\).*/\1/p" "$1" 2>/dev/null | head -n 1)
  echo "${value:-0}"
}

# "13" for a folder with an nvcc that runs; 0 for none.
toolkit_major() {
  local major
  major=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p' | head -n 1)
  echo "${major:-0}"
}

usable() {
  [ "$(toolkit_major "$1")" -ge 12 ] && [ -f "$1/include/cuda_runtime_api.h" ]
}

# Prints the toolkit's folder, or nothing.
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

# Whether the toolkit, or the system's folders, have a header of a version that serves; of NVRTC, with
# which cuDNN compiles fused attention while a program runs, the library.
has_piece() {
  local toolkit=$1 piece=$2 folder
  [ "$piece" != compiler ] || return 0
  if [ "$piece" = nvrtc ]; then
    for folder in "$toolkit"/{lib64,"targets/$machine-linux/lib"} "/usr/lib/$machine-linux-gnu"; do
      [ ! -f "$folder/libnvrtc.so.$(toolkit_major "$toolkit")" ] || return 0
    done
    return 1
  fi
  for folder in "$toolkit/include" /usr/include "/usr/include/$machine-linux-gnu"; do
    case $piece in
      cublas) [ ! -f "$folder/cublasLt.h" ] || return 0 ;;
      cudnn) [ "$(macro "$folder/cudnn_version.h" CUDNN_MAJOR)" -lt 9 ] || return 0 ;;
      frontend) [ ! -f "$folder/cudnn_frontend.h" ] || return 0 ;;
      nccl)
        [ $(($(macro "$folder/nccl.h" NCCL_MAJOR) * 100 + $(macro "$folder/nccl.h" NCCL_MINOR))) \
          -lt 222 ] || return 0
        ;;
    esac
  done
  return 1
}

# The lines of `wheels` that the toolkit ($1; empty: none) makes necessary.
needed_wheels() {
  local toolkit=$1 piece rest
  while read -r piece rest; do
    [ -n "$piece" ] || continue
    if [ -z "$toolkit" ] || ! has_piece "$toolkit" "$piece"; then echo "$piece $rest"; fi
  done <<<"$wheels"
}

# Those of the given lines that the folder does not hold yet.
absent_wheels() {
  local piece package version megabytes
  while read -r piece package version megabytes; do
    [ -n "$piece" ] || continue
    [ -f "$root/wheels/$package-$version" ] || echo "$piece $package $version $megabytes"
  done <<<"$1"
}

check_space() {
  local folder=$root megabytes=450 free part
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  while read -r _ _ _ part; do megabytes=$((megabytes + ${part:-0})); done <<<"$1"
  free=$(($(df -Pk "$folder" | awk 'NR == 2 { print $4 }') / 1024))
  [ "$free" -ge "$megabytes" ] ||
    fail "$folder has $free MB free, and the CUDA toolkit needs $megabytes: make room," \
      "or set CADRE_CUDA_ROOT to a folder elsewhere"
}

# Any Python that has pip will do: the wheels are chosen by the tags given here.
download() {
  local package=$1 version=$2 to=$3 log=$3/pip.log minor platforms=()
  for minor in 5 12 17 18 24 26 27 28 31 34; do
    platforms+=(--platform "manylinux_2_${minor}_$machine")
  done
  platforms+=(--platform "manylinux2014_$machine")
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-input --no-cache-dir \
    --progress-bar off --no-deps --only-binary=:all: --implementation cp --python-version 3.11 \
    "${platforms[@]}" --dest "$to" "$package==$version" >"$log" 2>&1 </dev/null; then
    grep -v 'is ignored: it is neither' "$log" | tail -n 8 >&2 || true
    fail "pip could not download $package $version (its last words are above): is there a network," \
      "and does pip's configuration name an index that has it?"
  fi
}

# Unpacks a wheel: bin, include, lib and nvvm, wherever they lie in it, and its licences.
unpack() {
  python3 - "$1" "$2" "$3" <<'PYTHON'
import os, pathlib, re, shutil, sys, zipfile

wheel, folder, package = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
place = re.compile(r"(?:nvidia/[^/]+/)?((?:bin|include|lib|nvvm)/.+[^/])")
licence = re.compile(r"[^/]+\.dist-info/(?:licenses/)?([^/]*[Ll]icense[^/]*)")
try:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = entry.filename
            if ".." in name.split("/"):
                sys.exit(f"{wheel} holds the path {name}")
            if ".alt.so" in name:
                continue  # a second build of a library, that nothing loads
            if match := place.fullmatch(name):
                to = folder / match[1]
            elif match := licence.fullmatch(name):
                to = folder / "licenses" / package / match[1]
            else:
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            # What was linked from the folder that is replaced is not written through.
            to.unlink(missing_ok=True)
            with archive.open(entry) as source, open(to, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            program = re.match(r"(?:nvvm/)?bin/[^/]+$", match[1]) and not name.endswith(".profile")
            os.chmod(to, 0o755 if program else 0o644)
except (OSError, zipfile.BadZipFile) as error:
    sys.exit(f"{wheel}: {error}")
PYTHON
}

# One of us at a time makes the folder; the next one finds it made.
lock_root() {
  mkdir -p "$(dirname "$root")" || fail "cannot make $(dirname "$root")"
  exec 9>"$root.lock"
  flock 9
}

# Puts the wheels into a copy of the folder, by links, and that in place of the folder.
fetch() {
  local lines=$1 toolkit=$2 new=$root.new.$$ download=$root.download.$$ package version file
  # shellcheck disable=SC2064
  trap "rm -rf '$new' '$download'" EXIT
  mkdir -p "$new" || fail "cannot make $new"
  [ ! -d "$root" ] || cp -al "$root/." "$new/"
  mkdir -p "$new/wheels"
  while read -r _ package version _; do
    [ -n "$package" ] || continue
    rm -rf "$download"
    mkdir -p "$download"
    download "$package" "$version" "$download"
    file=$(find "$download" -name '*.whl' | head -n 1)
    unpack "$file" "$new" "$package" || fail "could not unpack $package $version"
    touch "$new/wheels/$package-$version"
    say "got $package $version: $(stat -c %s "$file" | awk '{ printf "%.1f", $1 / 1e6 }') MB"
  done <<<"$lines"
  replace_root "$new" "$toolkit"
}

# nvcc looks for libraries in lib64; CMake follows `toolkit` to a toolkit that was found.
replace_root() {
  local new=$1 toolkit=$2 old=$root.old.$$
  ln -sfn lib "$new/lib64"
  rm -f "$new/toolkit"
  [ -z "$toolkit" ] || ln -s "$toolkit" "$new/toolkit"
  [ ! -d "$root" ] || mv -T "$root" "$old"
  mv -T "$new" "$root"
  rm -rf "$old"
}

# The same toolkit as when the folder was made.
linked_to() {
  [ "$(readlink "$root/toolkit" || true)" = "$1" ]
}

check_tools() {
  python3 -m pip --version >/dev/null 2>&1 ||
    fail "python3 with pip is needed to download the CUDA toolkit: install it (Debian: python3-pip)"
}

main() {
  local print='' toolkit needed absent
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
  needed=$(needed_wheels "$toolkit")
  if [ -z "$needed" ]; then
    [ -n "$print" ] || say "CUDA: $toolkit has everything"
    echo "$toolkit"
    return
  fi
  # The wheels are of CUDA 13: libraries of another version are not mixed with its headers.
  if [ -n "$toolkit" ] && [ "$(toolkit_major "$toolkit")" != 13 ]; then
    [ -n "$print" ] ||
      say "CUDA: $toolkit is CUDA $(toolkit_major "$toolkit") and lacks cuDNN, its frontend, NVRTC or" \
        "NCCL; using CUDA 13 beside it"
    toolkit=
    needed=$(needed_wheels "")
  fi
  absent=$(absent_wheels "$needed")
  if [ -n "$print" ]; then
    [ -z "$absent" ] || fail "CUDA: not there yet: $(awk '{ print $2 }' <<<"$absent" |
      paste -sd ' '); deploy/setup.sh cuda gets it"
  elif [ -n "$absent" ] || ! linked_to "$toolkit"; then
    [ -z "$absent" ] || check_tools
    check_space "$absent"
    [ -z "$toolkit" ] || say "CUDA: using $toolkit"
    lock_root
    fetch "$(absent_wheels "$needed")" "$toolkit"
    say "CUDA: $root is complete"
  else
    say "CUDA: $root has everything${toolkit:+ that $toolkit lacks}"
  fi
  echo "$root"
}

main "$@"
