"""Collects the programs of a build folder as a bundle: bench/gpu_bundle.sh calls it.

usage: gpu_bundle.py REPOSITORY BUILD_FOLDER OUT
"""

import datetime
import gzip
import json
import lzma
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

BUNDLE_LIMIT = 52_000_000
# Limit on the bundle and the tracked files together, since both are copied to the machine.
TOGETHER_LIMIT = 60 << 20
# Programs contain the same code, so the window must contain several of them.
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 << 20}]

# Libraries that every machine with a driver has.
PROVIDED = re.compile(
    r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|stdc\+\+|gcc_s|cuda|nvidia[^/]*))\.so"
)
# More images than the demo trains on, and as many as it evaluates in a second.
TRAIN_IMAGES, TEST_IMAGES = 8000, 2000


def fail(message):
    sys.exit(f"gpu_bundle: {message}")


def output_of(*command, **environment):
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return result.stdout.strip() if result.returncode == 0 else ""


class Bundle:
    """The folder `stage`, in which the bundle is collected."""

    def __init__(self, root, build, stage):
        self.root = root
        self.build = build
        self.stage = stage

    def copy(self, source, target):
        target = self.stage / target
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy2(source, target)
        return target

    def programs(self):
        """The programs that CMake lists, by folder: bin and tests."""
        programs = {"bin": [], "tests": []}
        for line in (self.build / "gpu_programs.txt").read_text().split():
            source = pathlib.Path(line)
            if not source.exists():
                fail(f"{source} is not built")
            folder = source.parent.name
            programs[folder].append(source.name)
            self.strip(self.copy(source, f"{folder}/{source.name}"), "--strip-all")
        return programs

    def strip(self, file, option):
        subprocess.run(["strip", option, file], check=True)

    def libraries(self):
        """Copies the shared libraries that the programs load."""
        # Debian has several BLAS libraries under one name. The reference BLAS has a fiftieth of the size of
        # OpenBLAS and suffices, because only the planner's linear programs call it.
        multiarch = f"/usr/lib/{os.uname().machine}-linux-gnu"
        programs = [*(self.stage / "bin").iterdir(), *(self.stage / "tests").iterdir()]
        loaded = output_of("ldd", *programs, LD_LIBRARY_PATH=f"{multiarch}/blas:{multiarch}/lapack")
        missing = sorted(set(re.findall(r"^\s*(\S+) => not found", loaded, re.MULTILINE)))
        if missing:
            fail(f"programs need libraries that are not installed: {' '.join(missing)}")
        for path in sorted(set(re.findall(r" => (/\S+) ", loaded))):
            if not PROVIDED.match(pathlib.Path(path).name):
                name = pathlib.Path(path).name
                self.strip(self.copy(pathlib.Path(path).resolve(), f"lib/{name}"), "--strip-unneeded")

    def sources(self):
        """Python programs, run files and data."""
        self.copy(self.root / "bench/gpu_check", "gpu_check")
        for name in ("bench/gpu_check.sh", "bench/gpu/gpu_step.py", "bench/torch_models.py"):
            path = self.root / name
            self.copy(path, path.name if path.name == "gpu_check.sh" else f"bench/{path.name}")
        self.copy(self.root / "model/zoo", "source/model/zoo")
        for folder in ("deploy", "bench"):
            for path in sorted((self.root / folder).glob("*.textproto")):
                self.copy(path, f"source/{folder}/{path.name}")
        images = pathlib.Path("/usr/share/datasets/fashion-mnist")
        for source in images.glob("*-ubyte.gz"):
            items = TRAIN_IMAGES if source.name.startswith("train") else TEST_IMAGES
            shorten(source, self.stage / "data/fashion-mnist" / source.name, items)

    def tests(self, names):
        """The tests with the arguments that CTest passes them. Files that these name are copied."""
        listed = json.loads(output_of("ctest", "--test-dir", str(self.build), "--show-only=json-v1"))
        commands = {}
        for test in listed["tests"]:
            if command := test.get("command"):
                commands.setdefault(pathlib.Path(command[0]).name, command[1:])
        return [
            {"name": name, "arguments": [self.bundled(word) for word in commands[name]]}
            for name in names
        ]

    def bundled(self, word):
        """An argument that names a path of the sources names its copy in the bundle."""
        before, found, path = word.partition(f"{self.root}/")
        if not found:
            return word
        self.copy(self.root / path, f"source/{path}")
        return f"{before}{{bundle}}/source/{path}"

    def benches(self):
        """Lines of bench/gpu/commands.txt: a name, seconds, and the command."""
        benches = []
        for line in (self.root / "bench/gpu/commands.txt").read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, seconds, *command = line.split()
                benches.append({"name": name, "seconds": float(seconds), "command": command})
        return benches

    def write_about(self, tests):
        """Writes bundle.json, the last file."""
        files = self.build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake")
        compiler = "".join(path.read_text() for path in files)
        version = re.search(r'^set\(CMAKE_CUDA_COMPILER_VERSION "(.*?)"', compiler, re.MULTILINE)
        cache = (self.build / "CMakeCache.txt").read_text()
        about = {
            "commit": output_of(
                "git", "-C", str(self.root), "describe", "--always", "--dirty", "--abbrev=12"
            ),
            "built": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "nvcc": version[1] if version else "",
            "architectures": re.search(r"^CADRE_CUDA_ARCHITECTURES:\w+=(.*)$", cache, re.MULTILINE)[1],
            "tests": self.tests(tests),
            "benches": self.benches(),
        }
        about["files"] = {
            str(path.relative_to(self.stage)): path.stat().st_size
            for path in sorted(self.stage.rglob("*"))
            if path.is_file()
        }
        (self.stage / "bundle.json").write_text(json.dumps(about, indent=1) + "\n")


def shorten(source, target, items):
    """Copies an IDX file with its first items only."""
    data = gzip.decompress(source.read_bytes())
    sizes = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    items = min(items, sizes[0])
    end = 4 + 4 * len(sizes) + items * math.prod(sizes[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(data[:4] + struct.pack(">I", items) + data[8:end], mtime=0))


def archive(stage, out):
    """Writes the archive. The package that gpu_check.sh reads by itself comes first, then files by their names'
    endings, so that similar ones are near each other."""

    def order(path):
        package = stage / "gpu_check" not in path.parents
        return package, path.suffix == ".gz", path.parent.name, path.name

    partial = out.with_name(out.name + ".partial")
    with lzma.open(partial, "wb", filters=FILTERS) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted((path for path in stage.rglob("*") if path.is_file()), key=order):
            member = tar.gettarinfo(path, f"cadre-gpu/{path.relative_to(stage)}")
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            with path.open("rb") as content:
                tar.addfile(member, content)
    partial.replace(out)


def tracked_bytes(root):
    names = subprocess.run(
        ["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return sum((root / name).lstat().st_size for name in names if name and (root / name).exists())


def report(root, stage, out, counts):
    """Prints the sizes. Fails if the archive is larger than its limits."""
    size, tracked = out.stat().st_size, tracked_bytes(root)
    together = size + tracked
    print(
        f"gpu_bundle: {out}: {counts}; {size / 1e6:.1f} MB; tracked files {tracked / 1e6:.1f} MB;"
        f" together {together / 2**20:.1f} MiB"
    )
    parts = sorted(((path.stat().st_size, path) for path in stage.rglob("*") if path.is_file()), reverse=True)
    largest = ", ".join(f"{path.relative_to(stage)} {bytes / 1e6:.1f} MB" for bytes, path in parts[:8])
    if size > BUNDLE_LIMIT:
        fail(f"{out} is larger than {BUNDLE_LIMIT / 1e6:.0f} MB; largest parts before compression: {largest}")
    if together > TOGETHER_LIMIT:
        fail(f"bundle and tracked files are larger than {TOGETHER_LIMIT >> 20} MiB together; largest parts: {largest}")


def main():
    root, build, out = (pathlib.Path(word).absolute() for word in sys.argv[1:])
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as parts:
        stage = pathlib.Path(parts, "cadre-gpu")
        bundle = Bundle(root.resolve(), build.resolve(), stage)
        programs = bundle.programs()
        bundle.libraries()
        bundle.sources()
        bundle.write_about(programs["tests"])
        libraries = len(list((stage / "lib").iterdir()))
        counts = f"{len(programs['bin'])} programs, {len(programs['tests'])} CUDA tests, {libraries} libraries"
        if out.name.endswith(".tar.xz"):
            archive(stage, out)
            report(root, stage, out, counts)
            return
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(stage, out)
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        print(f"gpu_bundle: {out}: {counts}; {size / 1e6:.1f} MB, not compressed")


if __name__ == "__main__":
    main()
