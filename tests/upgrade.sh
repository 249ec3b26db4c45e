#!/usr/bin/env bash
# Upgrades and downgrades a cluster, member by member, between an earlier revision and the working
# tree, while a run trains with coded rounds.
#
#   tests/upgrade.sh REVISION [--dir DIR] [--build DIR]
#
#   REVISION     a commit, a branch or a tag; its files are taken from the history with `git archive`
#   --dir DIR    folder for the sources, the build and the logs (default: upgrade/ and the number
#                of the commit, in the build folder); what a former call has built there is built
#                again only where it is incomplete
#   --build DIR  build folder of the working tree (default: build)
#
# Both builds are made by their own deploy/build.sh, the earlier one without tests and CUDA.
# tests/cluster/mixed_builds_test.cc then starts a coordinator, two aggregators and two groups of two
# workers of the earlier revision, replaces one after another by those of the working tree, and these
# by the earlier ones again. The last version must have the digest of the same run with each of the
# two builds alone; the test's header explains why every bit is promised to be equal.
#
# The last line is a JSON object. Exits with 0 if the digests are equal, with 1 if they differ or the
# run does not get so far, and with 2 if it cannot be tried. Logs of the processes remain after a
# failure.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
dir=
revision=
# Limits in seconds of a build, and of the runs.
build_limit=10800
run_limit=3600

fail() {
  echo "upgrade: $*" >&2
  exit 2
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

step() { printf 'upgrade: [%4d s] %s\n' "$SECONDS" "$*"; }

# limited SECONDS WHAT COMMAND...: runs the command. An interrupt ends it as well.
limited() {
  local limit=$1 what=$2 code=0
  shift 2
  timeout --kill-after=30 "$limit" "$@" &
  local child=$!
  trap 'kill "$child"; exit 130' INT TERM
  wait "$child" || code=$?
  trap - INT TERM
  [[ "$code" != 124 && "$code" != 137 ]] || echo "upgrade: $what takes more than $limit s" >&2
  return "$code"
}

while [ $# -gt 0 ]; do
  case $1 in
    --dir | --build) [ $# -ge 2 ] || fail "$1 requires a value (see --help)" ;;&
    --dir) dir=$(realpath -m "$2"); shift 2 ;;
    --build) build=$(realpath -m "$2"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) fail "unknown option '$1' (see --help)" ;;
    *) [ -z "$revision" ] || fail "unexpected argument '$1' (see --help)"; revision=$1; shift ;;
  esac
done

[ -n "$revision" ] || fail "missing argument: the earlier revision (see --help)"
commit=$(git -C "$root" rev-parse --quiet --verify "$revision^{commit}") ||
  fail "'$revision' is not a revision of $root"
short=${commit:0:12}
dir=${dir:-$build/upgrade/$short}
mkdir -p "$dir"

# The folder appears when it is complete.
if [ ! -d "$dir/source" ]; then
  step "1 of 4: the files of $short"
  rm -rf "$dir/source.new"
  mkdir "$dir/source.new"
  git -C "$root" archive "$commit" | tar -x -C "$dir/source.new"
  echo "$commit" >"$dir/source.new/.revision"
  mv "$dir/source.new" "$dir/source"
fi
[ "$(cat "$dir/source/.revision" 2>/dev/null)" = "$commit" ] ||
  fail "$dir/source has the files of another revision: remove it, or choose another --dir"

step "2 of 4: building the programs of $short (log: $dir/build.log)"
limited "$build_limit" "the build of $short" bash "$dir/source/deploy/build.sh" --cuda OFF \
  cadre-coordinator cadre-aggregator cadre-worker >"$dir/build.log" 2>&1 ||
  { tail -20 "$dir/build.log" >&2; fail "$short was not built; all messages are in $dir/build.log"; }

step "3 of 4: building the programs of the working tree and the test"
limited "$build_limit" "the build of the working tree" bash "$root/deploy/build.sh" --dir "$build" \
  --tests cluster_mixed_builds_test || fail "the working tree was not built"

step "4 of 4: replacing the members (log: $dir/run.log)"
logs=$dir/logs-of-members
rm -rf "$logs"
mkdir "$logs"
result=true
CADRE_OTHER_BUILD=$dir/source/build/bin CADRE_KEEP_LOGS=$logs limited "$run_limit" "the test" \
  "$build/tests/cluster_mixed_builds_test" >"$dir/run.log" 2>&1 || result=false
[ "$result" = true ] || { tail -40 "$dir/run.log" >&2; step "failed; logs of the members: $logs"; }
run=$(grep '^{' "$dir/run.log" | tail -1 || true)
printf '{"revision":"%s","equal":%s,"seconds":%d,"run":%s}\n' \
  "$commit" "$result" "$SECONDS" "${run:-null}"
[ "$result" = true ]
