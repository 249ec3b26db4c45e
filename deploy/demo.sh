#!/usr/bin/env bash
# Installs missing packages, builds Cadre and trains Fashion-MNIST on a local cluster: a coordinator,
# two aggregators and two groups of two workers.
#
#   deploy/demo.sh [FLAG ...]      flags are passed to `cadre local`, e.g. -o json or --groups 4
#
# Progress goes to stderr, the summary to stdout. Ctrl-C stops all processes.
set -euo pipefail

case ${1:-} in
  -h | --help)
    sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
    exit 0
    ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

step() { printf 'demo: [%3d s] %s\n' "$SECONDS" "$*" >&2; }

step "1 of 3: installing missing packages"
bash deploy/setup.sh build >&2

step "2 of 3: building the programs into build/bin (minutes the first time)"
bash deploy/build.sh --cuda OFF cadre cadre-coordinator cadre-aggregator cadre-worker >&2

step "3 of 3: training on 2 groups of 2 workers, with 2 aggregators"
# exec: signals reach `cadre local`, which then shuts the cluster down.
exec build/bin/cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2 "$@"
