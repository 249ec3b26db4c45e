#!/usr/bin/env bash
# Trains the demo on this machine: installs what is missing, builds Cadre and runs a whole cluster
# (a coordinator, two aggregators, two groups of two workers) on Fashion-MNIST.
#
#   deploy/demo.sh [FLAG ...]      flags go to `cadre local`, e.g. -o json, or --groups 4
#
# Progress goes to stderr, the summary to stdout. Ctrl-C ends every process it started.
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

step "1 of 3: installing what a build needs"
bash deploy/setup.sh build >&2

step "2 of 3: building the programs into build/bin (minutes the first time)"
bash deploy/build.sh cadre cadre-coordinator cadre-aggregator cadre-worker >&2

step "3 of 3: training, with 2 groups of 2 workers and 2 aggregators"
# exec: signals reach the run itself, which then ends its processes in order.
exec build/bin/cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2 "$@"
