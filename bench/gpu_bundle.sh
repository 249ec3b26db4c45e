#!/usr/bin/env bash
# Collects what gpu_check.sh needs on a machine with a GPU and Python but without Cadre's build
# dependencies: programs, CUDA tests, benchmarks, their shared libraries and data.
#
#   bench/gpu_bundle.sh BUILD_DIR OUT
#
#   BUILD_DIR  a build with -DCADRE_CUDA=ON and -DCADRE_TESTS=ON, built
#   OUT        a folder, or a file that ends in .tar.zst, .tar.xz or .tar.gz
#
# The bundle contains neither cuBLAS, cuDNN and NCCL, which the GPU machine has in a toolkit or in Python
# wheels, nor glibc, libstdc++ and the driver. It contains the first 20,000 training images of
# Fashion-MNIST. OUT may have 60 MB at most.
set -euo pipefail

limit=60000000

fail() {
  echo "gpu_bundle: $*" >&2
  exit 1
}

usage() {
  sed -n '2,/^set -/p' "$0" | grep '^#' | cut -c3-
}

case ${1:-} in -h | --help) usage; exit 0 ;; esac
[ $# = 2 ] || fail "requires a build folder and the path of the bundle (see --help)"
root=$(cd "$(dirname "$0")/.." && pwd)
[ -f "$1/CMakeCache.txt" ] || fail "$1 is not a build folder"
build=$(cd "$1" && pwd)
out=$2

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
stage=$parts/cadre-gpu
mkdir -p "$stage"/{bin,tests,lib,bench,data,source/model,source/deploy}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" | head -n 1; }

[ "$(cached CADRE_CUDA)" != OFF ] || fail "$build was configured with CADRE_CUDA=OFF"

# Whether a program is linked with the real CUDA runtime. grep must read to the end, otherwise nm fails.
runs_on_gpu() { nm -C "$1" 2>/dev/null | grep ' [Tt] cadre::RealCudaApi()' >/dev/null; }

copy_program() { strip -o "$2/$(basename "$1")" "$1"; }

for name in cadre cadre-coordinator cadre-aggregator cadre-worker; do
  [ -x "$build/bin/$name" ] || fail "$build/bin/$name is not built"
  copy_program "$build/bin/$name" "$stage/bin"
done
for program in "$build"/bin/bench_*; do
  if [ -x "$program" ] && runs_on_gpu "$program"; then copy_program "$program" "$stage/bin"; fi
done
tests=()
for program in "$build"/tests/*; do
  # cuda_plans_test needs the vendor's libraries, but not the runtime.
  if [ -f "$program" ] && [ -x "$program" ] &&
    { runs_on_gpu "$program" || [ "$(basename "$program")" = cuda_plans_test ]; }; then
    copy_program "$program" "$stage/tests"
    tests+=("$(basename "$program")")
  fi
done
[ ${#tests[@]} -gt 0 ] || fail "$build/tests holds no CUDA tests: is it built, with CADRE_CUDA=ON?"

# Debian has several BLAS libraries under one name. The reference BLAS has a fiftieth of the size of
# OpenBLAS and suffices, because only the planner's linear programs call it.
multiarch=/usr/lib/$(uname -m)-linux-gnu
loaded_by() { LD_LIBRARY_PATH=$multiarch/blas:$multiarch/lapack ldd "$@" 2>/dev/null; }

# The libraries of a program, except those that every machine with a driver has.
libraries() {
  loaded_by "$@" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -v -E '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|anl|stdc\+\+|gcc_s|cuda|nvidia[^/]*))\.so'
}

while read -r library; do
  cp -L "$library" "$stage/lib/"
  strip --strip-unneeded "$stage/lib/$(basename "$library")" 2>/dev/null || true
done < <(libraries "$stage"/bin/* "$stage"/tests/*)
missing=$(loaded_by "$stage"/bin/* "$stage"/tests/* | sed -n 's/^[[:space:]]*\(.*\) => not found/\1/p' |
  sort -u | paste -sd ' ')
[ -z "$missing" ] || fail "programs need libraries that are not installed: $missing"

cp "$root/bench/gpu_check.sh" "$root/bench/gpu_check.py" "$stage/"
cp "$root"/bench/gpu/*.py "$root/bench/torch_models.py" "$stage/bench/"
cp -r "$root/model/zoo" "$stage/source/model/"
cp "$root"/deploy/*.textproto "$stage/source/deploy/"
# Writes bundle.json for gpu_check.py: tests with their arguments, benchmarks, commit and compiler.
python3 - "$root" "$build" "$stage" "$(cached CADRE_CUDA_ARCHITECTURES)" "${tests[@]}" <<'PYTHON'
import datetime, gzip, json, math, pathlib, re, shutil, struct, subprocess, sys

root, build, stage = (pathlib.Path(word) for word in sys.argv[1:4])
architectures, names = sys.argv[4], sys.argv[5:]


def output_of(*command):
    result = subprocess.run(command, capture_output=True, text=True, cwd=root)
    return result.stdout.strip() if result.returncode == 0 else ""


def bundled(word):
    """An argument that names a path of the sources names its copy in the bundle."""
    before, found, path = word.partition(str(root) + "/")
    if not found:
        return word
    source, copy = root / path, stage / "source" / path
    if source.is_dir():
        shutil.copytree(source, copy, dirs_exist_ok=True)
    elif source.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
    return f"{before}{{bundle}}/source/{path}"


def shorten(source, target, items):
    """Copies an IDX file with its first items only."""
    data = gzip.decompress(source.read_bytes())
    sizes = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    items = min(items, sizes[0])
    end = 4 + 4 * len(sizes) + items * math.prod(sizes[1:])
    target.write_bytes(gzip.compress(data[:4] + struct.pack(">I", items) + data[8:end], mtime=0))


images = pathlib.Path("/usr/share/datasets/fashion-mnist")
for source in images.glob("*-ubyte.gz"):
    target = stage / "data/fashion-mnist" / source.name
    target.parent.mkdir(exist_ok=True)
    shorten(source, target, 20000)

listed = json.loads(output_of("ctest", "--test-dir", str(build), "--show-only=json-v1") or "{}")
commands = {}
for test in listed.get("tests", []):
    if command := test.get("command"):
        commands.setdefault(pathlib.Path(command[0]).name, command[1:])
tests = [
    {"name": name, "arguments": [bundled(word) for word in commands.get(name, [])]}
    for name in names
]

# Lines of bench/gpu/commands.txt: a name, seconds, and the command; {bundle} is the bundle's folder.
benches = []
for line in (root / "bench/gpu/commands.txt").read_text().splitlines():
    if line.strip() and not line.startswith("#"):
        name, seconds, *command = line.split()
        benches.append({"name": name, "seconds": float(seconds), "command": command})

compiler = "".join(path.read_text() for path in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"))
version = re.search(r'^set\(CMAKE_CUDA_COMPILER_VERSION "(.*?)"', compiler, re.MULTILINE)
about = {
    "commit": output_of("git", "describe", "--always", "--dirty", "--abbrev=12"),
    "built": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    "nvcc": version[1] if version else "",
    "architectures": architectures,
    "tests": tests,
    "benches": benches,
}
(stage / "bundle.json").write_text(json.dumps(about, indent=1) + "\n")
PYTHON

case $out in
  *.tar.zst) tar -C "$parts" -cf - cadre-gpu | zstd -q -9 --long=27 -f -o "$out" ;;
  *.tar.xz) tar -C "$parts" -cf - cadre-gpu | xz -T0 -3 >"$out" ;;
  *.tar.gz) tar -C "$parts" -czf "$out" cadre-gpu ;;
  *.tar* | *.zip) fail "$out: archives end in .tar.zst, .tar.xz or .tar.gz" ;;
  *)
    [ ! -e "$out" ] || [ -f "$out/bundle.json" ] || fail "$out exists and is not a bundle"
    rm -rf "$out"
    mkdir -p "$(dirname "$out")"
    cp -r "$stage" "$out"
    ;;
esac
size=$(du -sb "$out" | awk '{ print $1 }')
echo "gpu_bundle: $out: $((size / 1000000)) MB; ${#tests[@]} CUDA test programs," \
  "$(find "$stage/lib" -type f | wc -l) libraries"
[ "$size" -le "$limit" ] || fail "$out is larger than $((limit / 1000000)) MB; largest parts:" \
  "$(du -a --block-size=1M "$stage" | sort -rn | sed -n '2,9p' | sed "s|$stage/||" |
    awk '{ printf "%s %s MB, ", $2, $1 }')"
