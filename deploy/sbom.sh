#!/usr/bin/env bash
# Prints a bill of materials in SPDX 2.3 (JSON): which packages, in which versions, an artifact contains.
#
#   deploy/sbom.sh KIND ARTIFACT
#
#   deb FILE    a package of ours: its dependencies in the versions it was built with, and what is
#               compiled into it
#   image NAME  the system on which the script runs, called NAME: all Debian packages, and the CUDA
#               libraries, if they are installed beside cadre-worker
#
# Requires only dpkg and awk. SOURCE_DATE_EPOCH sets the time in the document.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

# Lines with tabs: relationship to the artifact, kind, name, version, architecture.
installed() {
  local relationship=$1
  shift
  dpkg-query -W -f "$relationship\tdeb\t\${Package}\t\${Version}\t\${Architecture}\t\${db:Status-Status}\n" "$@" |
    sed -n 's/\tinstalled$//p'
}

wheels() {
  sed -n 's/^\(nvidia-[a-z0-9-]*\)==\([0-9.]*\) .*/CONTAINS\tpypi\t\1\t\2\t/p' "$root/deploy/cuda_wheels.txt"
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
esac
if [ $# -ne 2 ]; then
  usage >&2
  exit 2
fi
case $1 in
  deb)
    name=$(dpkg-deb --field "$2" Package)
    version=$(dpkg-deb --field "$2" Version)
    # "a (>= 1), b | c" -> a b
    mapfile -t depends < <(dpkg-deb --field "$2" Depends | tr ',' '\n' | sed 's/^ *\([a-z0-9.+-]*\).*/\1/')
    # Only headers of the JSON library are used, and no file of it is installed.
    lines=$(installed DEPENDS_ON "${depends[@]}" && installed CONTAINS nlohmann-json3-dev)
    if [ "$name" = cadre-daemons ]; then
      uplot=$(grep -o -m 1 'uPlot (v[0-9.]*)' "$root/coordinator/dashboard/assets/uplot.js")
      lines+=$'\n'$(printf 'CONTAINS\tnpm\tuplot\t%s\t' "$(tr -cd '0-9.' <<<"$uplot")")
    fi
    ;;
  image)
    name=$2
    version=$(dpkg-query -W -f '${Version}' cadre-worker 2>/dev/null || dpkg-query -W -f '${Version}' cadre-daemons)
    lines=$(installed CONTAINS)
    if compgen -G '/usr/lib/cadre-cuda/*' >/dev/null; then lines+=$'\n'$(wheels); fi
    ;;
  *) usage >&2; exit 2 ;;
esac

LC_ALL=C sort -u <<<"$lines" | awk -F '\t' -v name="$name" -v version="$version" \
  -v created="$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)" \
  -v hash="$(sha256sum <<<"$name $version $lines" | cut -c1-32)" '
  function id(kind, name) { gsub(/[^A-Za-z0-9.-]/, "-", name); return "SPDXRef-" kind "-" name }
  function escaped(text) { gsub(/%/, "%25", text); gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); gsub(/~/, "%7E", text); return text }
  BEGIN {
    printf "{\n \"spdxVersion\": \"SPDX-2.3\",\n \"dataLicense\": \"CC0-1.0\",\n \"SPDXID\": \"SPDXRef-DOCUMENT\",\n"
    printf " \"name\": \"%s-%s\",\n \"documentNamespace\": \"https://spdx.org/spdxdocs/%s-%s-%s\",\n", name, version, name, version, hash
    printf " \"creationInfo\": {\"created\": \"%s\", \"creators\": [\"Tool: cadre-sbom\"]},\n \"packages\": [\n", created
    printf "  {\"SPDXID\": \"SPDXRef-Artifact\", \"name\": \"%s\", \"versionInfo\": \"%s\", ", name, version
    printf "\"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false}"
    links = "  {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-Artifact\"}"
  }
  NF {
    locator = "pkg:" $2 "/" ($2 != "deb" ? "" : $3 ~ /^cadre/ ? "cadre/" : "debian/") escaped($3) "@" escaped($4) ($5 == "" ? "" : "?arch=" $5)
    # Packages of several architectures can have one name.
    this = id($2, $5 == "" ? $3 : $3 "-" $5)
    printf ",\n  {\"SPDXID\": \"%s\", \"name\": \"%s\", \"versionInfo\": \"%s\", ", this, $3, $4
    printf "\"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, \"externalRefs\": [{"
    printf "\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\", \"referenceLocator\": \"%s\"}]}", locator
    links = links ",\n  {\"spdxElementId\": \"SPDXRef-Artifact\", \"relationshipType\": \"" $1 "\", \"relatedSpdxElement\": \"" this "\"}"
  }
  END { printf "\n ],\n \"relationships\": [\n%s\n ]\n}\n", links }'
