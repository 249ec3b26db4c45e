#!/usr/bin/env bash
# Runs every CUDA test and GPU benchmark of a bundle on the machine at hand, in under nine minutes, and
# writes what it saw as JSON and as a short table. A failure does not end it. What tells most comes
# first: kernels, libraries, device, NCCL, plans on several ranks, runs, benchmarks.
#
#   bench/gpu_check.sh [--out FILE] [--only LIST] [--seconds N] [BUNDLE]
#
#   BUNDLE       what gpu_bundle.sh made: its folder, or the archive (default: this script's folder)
#   --out FILE   where the JSON goes (default: gpu_check.json)
#   --only LIST  some of starts,tests,ranks,demo,bench,sanitizer (default: all, in this order)
#   --seconds N  time for everything together (default 520)
#
# Exit code: 0 everything passed; 1 something failed; 2 wrong arguments; 3 there is no GPU: only
# whether the programs start was tried; 4 nothing failed, but something was skipped.
set -euo pipefail

fail() {
  echo "gpu_check: $*" >&2
  exit 2
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

here=$(cd "$(dirname "$0")" && pwd)
bundle=
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --out | --only | --seconds)
      [ $# -ge 2 ] || fail "$1 needs a value (see --help)"
      arguments+=("$1" "$2")
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    -*) fail "unknown option '$1' (see --help)" ;;
    *)
      [ -z "$bundle" ] || fail "one bundle, not also '$1'"
      bundle=$1
      shift
      ;;
  esac
done
bundle=${bundle:-$here}
[ -e "$bundle" ] || fail "there is no '$bundle'"
command -v python3 >/dev/null || fail "python3 is needed to run the checks"

if [ -f "$bundle" ]; then
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  # Python unpacks .xz and .gz itself where their programs are not there.
  tar -xf "$bundle" -C "$unpacked" 2>/dev/null || python3 -m tarfile -e "$bundle" "$unpacked" ||
    fail "cannot unpack $bundle"
  bundle=$unpacked/cadre-gpu
fi
[ -f "$bundle/bundle.json" ] || fail "$bundle is no bundle: bench/gpu_bundle.sh makes one"

# Not exec: the unpacked bundle is removed afterwards.
status=0
python3 "$bundle/gpu_check.py" "${arguments[@]}" "$bundle" || status=$?
exit "$status"
