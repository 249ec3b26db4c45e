#!/usr/bin/env bash
# Runs all CUDA tests and GPU benchmarks of a bundle on this machine: see `bench/gpu_check.sh --help`.
set -euo pipefail

command -v python3 >/dev/null || {
  echo "gpu_check: python3 is required to run the checks" >&2
  exit 2
}
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
