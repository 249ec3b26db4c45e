#!/usr/bin/env bash
# Makes a manual page for each verb of the command line from its help.
#
#   deploy/manuals.sh CADRE DIR
#
#   CADRE  the program
#   DIR    folder of the pages, cadre-VERB.1; created if necessary
set -euo pipefail

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
esac
if [ $# -ne 2 ]; then
  usage >&2
  exit 2
fi
cadre=$1
dir=$2
version=$("$cadre" version --client)
mkdir -p "$dir"
# "  VERB   brief": the lines between the titles.
"$cadre" help | sed -n '/^Verbs:$/,/^$/ { s/^  \([a-z-]*\)  *\(.*\)$/\1 \2/p }' |
  while read -r verb brief; do
    help2man --no-info --no-discard-stderr --help-option="help $verb" --version-string="$version" \
      --name "$brief" --output "$dir/cadre-$verb.1" "$cadre"
    # help2man has the title from the name of the program.
    sed -i "s/^\.TH CADRE /.TH CADRE-${verb^^} /" "$dir/cadre-$verb.1"
  done
