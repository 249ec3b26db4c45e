#!/usr/bin/env bash
# Runs all CUDA tests and GPU benchmarks of a bundle on this machine: see `bench/gpu_check.sh --help`.
#
# gpu_check.py does the work. It is in the folder of this script, which may be called through a link; a copy
# of this script alone reads it from the bundle.
set -euo pipefail

program=$(dirname "$(readlink -f "$0")")/gpu_check.py
if [ ! -f "$program" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  program=$folder/gpu_check.py
  for bundle; do
    if [ -f "$bundle/gpu_check.py" ]; then cp "$bundle/gpu_check.py" "$program"; fi
    if [ -f "$bundle" ]; then tar -C "$folder" --strip-components=1 -xf "$bundle" cadre-gpu/gpu_check.py || true; fi
  done
fi
[ -f "$program" ] || { echo "gpu_check: gpu_check.py is neither beside this script nor in a bundle" >&2; exit 2; }
command -v python3 >/dev/null || { echo "gpu_check: python3 is required to run the checks" >&2; exit 2; }
# Without a temporary copy to remove, the checks replace this process and receive its signals.
[ -n "${folder:-}" ] || exec python3 "$program" "$@"
python3 "$program" "$@"
