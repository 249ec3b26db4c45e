#!/usr/bin/env python3
"""deploy/cuda_toolkit.sh finds a toolkit, gets what it lacks, and leaves nothing half done.

usage: cuda_toolkit_test.py REPOSITORY

pip is played by a program that hands out small wheels; what they hold is laid out as the vendor's are.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPT = ROOT / "deploy/cuda_toolkit.sh"
WHEELS = re.findall(r"^(\w+) (nvidia-[\w-]+) ([\d.]+) \d+$", SCRIPT.read_text(), re.MULTILINE)

FAKE_PYTHON = """#!/bin/sh
if [ "$1 $2" != "-m pip" ]; then exec {python} "$@"; fi
[ "$3" = download ] || exit 0
for last; do :; done
while [ "$1" != --dest ]; do shift; done
echo "$last" >>{calls}
cp {wheels}/"$last".whl "$2"/ 2>/dev/null || {{ echo "ERROR: no $last here"; exit 1; }}
"""

NVCC = '#!/bin/sh\necho "Cuda compilation tools, release {0}, V{0}.88"\n'

CONTENTS = {
    "nvidia-cuda-nvcc": {"nvidia/cu13/bin/nvcc": NVCC.format("13.0")},
    "nvidia-cuda-runtime": {"nvidia/cu13/include/cuda_runtime_api.h": "// runtime"},
    "nvidia-cublas": {
        "nvidia/cu13/include/cublasLt.h": "// cublasLt",
        "nvidia/cu13/lib/libcublasLt.so.13": "library",
    },
    "nvidia-cudnn-cu13": {
        "nvidia/cudnn/include/cudnn_version.h": "#define CUDNN_MAJOR 9\n",
        "nvidia/cudnn/lib/libcudnn.so.9": "library",
        "nvidia/cudnn/__init__.py": "",
    },
    "nvidia-cudnn-frontend": {"include/cudnn_frontend.h": "// frontend", "cudnn/graph.py": ""},
    "nvidia-nccl-cu13": {
        "nvidia/nccl/include/nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n",
        "nvidia/nccl/lib/libnccl.so.2": "library",
    },
}


class CudaToolkitTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root = self.folder / "cache/cuda"
        self.calls = self.folder / "calls"
        for name in ("bin", "wheels"):
            (self.folder / name).mkdir()
        self.program(
            "python3",
            FAKE_PYTHON.format(
                python=sys.executable, calls=self.calls, wheels=self.folder / "wheels"
            ),
        )
        for _, package, version in WHEELS:
            with zipfile.ZipFile(self.folder / f"wheels/{package}=={version}.whl", "w") as wheel:
                for path, text in CONTENTS.get(package, {}).items():
                    wheel.writestr(path, text)
                wheel.writestr(f"{package}.dist-info/licenses/License.txt", "terms")

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def toolkit(self, release, *headers, nvrtc=False):
        """A toolkit of that release, with more headers as (name, text), and NVRTC's library."""
        folder = self.folder / f"toolkit-{release}"
        for name in ("bin", "include", "lib64"):
            (folder / name).mkdir(parents=True)
        if nvrtc:
            (folder / f"lib64/libnvrtc.so.{release.split('.')[0]}").write_text("library")
        nvcc = folder / "bin/nvcc"
        nvcc.write_text(NVCC.format(release))
        nvcc.chmod(0o755)
        for name, text in (("cuda_runtime_api.h", ""), *headers):
            (folder / "include" / name).write_text(text)
        return folder

    def run_script(self, *arguments, toolkit="none"):
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "CADRE_CUDA_ROOT": str(self.root),
            "CADRE_CUDA_TOOLKIT": str(toolkit),
        }
        return subprocess.run(
            ["bash", SCRIPT, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def asked_for(self):
        return self.calls.read_text().split() if self.calls.exists() else []

    def assertOnlyTheRootIsLeft(self):
        left = {path.name for path in self.root.parent.iterdir()} - {"cuda", "cuda.lock"}
        self.assertEqual(left, set())

    def test_gets_everything_where_there_is_nothing(self):
        result = self.run_script()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"{self.root}\n")
        self.assertEqual(self.asked_for(), [f"{name}=={version}" for _, name, version in WHEELS])
        for _, name, version in WHEELS:
            self.assertRegex(result.stderr, rf"got {name} {version}: [\d.]+ MB")
        self.assertTrue(os.access(self.root / "bin/nvcc", os.X_OK))
        for path in ("include/cudnn_frontend.h", "lib64/libnccl.so.2", "lib/libcublasLt.so.13"):
            self.assertTrue((self.root / path).is_file(), path)
        self.assertTrue((self.root / "licenses/nvidia-cublas/License.txt").is_file())
        self.assertFalse((self.root / "graph.py").exists())
        self.assertOnlyTheRootIsLeft()

    def test_a_second_run_downloads_nothing(self):
        self.run_script()
        self.calls.unlink()
        result = self.run_script()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
        self.assertEqual(self.asked_for(), [])
        self.assertIn("has everything", result.stderr)

    def test_a_complete_toolkit_is_used_as_it_is(self):
        everything = [
            ("cublasLt.h", ""),
            ("cudnn_version.h", "#define CUDNN_MAJOR 9\n"),
            ("cudnn_frontend.h", ""),
            ("nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 25\n"),
        ]
        toolkit = self.toolkit("12.6", *everything, nvrtc=True)
        result = self.run_script(toolkit=toolkit)
        self.assertEqual((result.returncode, result.stdout), (0, f"{toolkit}\n"))
        self.assertEqual(self.asked_for(), [])
        self.assertFalse(self.root.exists())

    def test_only_what_a_toolkit_lacks_is_downloaded(self):
        old = [("cublasLt.h", ""), ("nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 10\n")]
        toolkit = self.toolkit("13.1", *old)
        result = self.run_script(toolkit=toolkit)
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
        self.assertEqual(
            [name.split("==")[0] for name in self.asked_for()],
            [
                "nvidia-cudnn-cu13",
                "nvidia-cuda-nvrtc",
                "nvidia-cudnn-frontend",
                "nvidia-nccl-cu13",
            ],
        )
        self.assertEqual(os.readlink(self.root / "toolkit"), str(toolkit))

    def test_a_library_that_is_only_needed_at_run_time_is_not_forgotten(self):
        toolkit = self.toolkit(
            "13.0",
            ("cublasLt.h", ""),
            ("cudnn_version.h", "#define CUDNN_MAJOR 9\n"),
            ("cudnn_frontend.h", ""),
            ("nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n"),
        )
        result = self.run_script(toolkit=toolkit)
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
        self.assertEqual([name.split("==")[0] for name in self.asked_for()], ["nvidia-cuda-nvrtc"])

    def test_libraries_of_cuda_13_are_not_mixed_with_an_older_toolkit(self):
        result = self.run_script(toolkit=self.toolkit("12.6", ("cublasLt.h", "")))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.asked_for()), len(WHEELS))
        self.assertIn("is CUDA 12", result.stderr)
        self.assertFalse((self.root / "toolkit").exists())

    def test_a_failed_download_is_named_and_leaves_what_was_there(self):
        missing = self.folder / "wheels/nvidia-cublas==13.1.0.3.whl"
        kept = missing.read_bytes()
        missing.unlink()
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("ERROR: no nvidia-cublas==13.1.0.3 here", result.stderr)
        self.assertIn("could not download nvidia-cublas 13.1.0.3", result.stderr)
        self.assertFalse(self.root.exists())
        self.assertOnlyTheRootIsLeft()
        missing.write_bytes(kept)
        self.assertEqual(self.run_script().returncode, 0)

    def test_a_damaged_wheel_is_named(self):
        (self.folder / "wheels/nvidia-nvvm==13.0.88.whl").write_bytes(b"not a zip file")
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("could not unpack nvidia-nvvm 13.0.88", result.stderr)

    def test_a_full_disk_is_told_before_anything_is_downloaded(self):
        self.program("df", "#!/bin/sh\necho head; echo disk 9 9 204800 99% /\n")
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("has 200 MB free", result.stderr)
        self.assertIn("CADRE_CUDA_ROOT", result.stderr)
        self.assertEqual(self.asked_for(), [])

    def test_print_gets_nothing_and_says_what_is_missing(self):
        result = self.run_script("--print")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("nvidia-cublas", result.stderr)
        self.assertEqual(self.asked_for(), [])
        self.run_script()
        result = self.run_script("--print")
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
        self.assertEqual(result.stderr, "")

    def test_a_toolkit_that_is_none_is_refused(self):
        result = self.run_script(toolkit=self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("has no bin/nvcc of CUDA 12 or newer", result.stderr)

    def test_refuses_an_unknown_argument(self):
        self.assertIn("unknown argument '--get'", self.run_script("--get").stderr)


if __name__ == "__main__":
    unittest.main()
