#!/usr/bin/env python3
"""deploy/cuda_toolkit.sh finds a complete toolkit or downloads one, and leaves no incomplete folder.

usage: cuda_toolkit_test.py REPOSITORY

A fake pip unpacks small wheels with the layout of the vendor's.
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
PINNED = ROOT / "deploy/cuda_wheels.txt"
WHEELS = re.findall(r"^(nvidia-[\w-]+==[\d.]+) --hash=", PINNED.read_text(), re.MULTILINE)

FAKE_PYTHON = """#!/bin/sh
if [ "$1 $2" != "-m pip" ]; then exec {python} "$@"; fi
[ "$3" = install ] || exit 0
for last; do :; done
while [ "$1" != --target ]; do shift; done
read -r wheel hashes <"$last"
case "$3 $hashes" in "--require-hashes --hash=sha256:"*) ;; *) echo "ERROR: no hashes"; exit 1 ;; esac
echo "$wheel" >>{calls}
if [ ! -f {wheels}/"$wheel".whl ]; then echo "ERROR: no $wheel here"; exit 1; fi
{python} -m zipfile -e {wheels}/"$wheel".whl "$2"
"""

NVCC = '#!/bin/sh\necho "Cuda compilation tools, release {0}, V{0}.88"\n'

CONTENTS = {
    "nvidia-cuda-nvcc": {"nvidia/cu13/bin/nvcc": NVCC.format("13.0")},
    "nvidia-nvvm": {"nvidia/cu13/nvvm/bin/cicc": "program"},
    "nvidia-cuda-runtime": {"nvidia/cu13/include/cuda_runtime_api.h": "// runtime"},
    "nvidia-cublas": {
        "nvidia/cu13/include/cublasLt.h": "// cublasLt",
        "nvidia/cu13/lib/libcublasLt.so.13": "library",
        "nvidia/cu13/lib/libcublasLt.alt.so.13": "library",
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

COMPLETE = {
    "cublasLt.h": "",
    "cudnn_version.h": "#define CUDNN_MAJOR 9\n",
    "cudnn_frontend.h": "",
    "nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 25\n",
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
        for name in WHEELS:
            with zipfile.ZipFile(self.folder / f"wheels/{name}.whl", "w") as wheel:
                for path, text in CONTENTS.get(name.partition("==")[0], {}).items():
                    wheel.writestr(path, text)
                wheel.writestr(f"{name}.dist-info/licenses/License.txt", "terms")

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def toolkit(self, release="12.6", headers=COMPLETE, nvrtc=True):
        """An installed toolkit with the headers."""
        folder = self.folder / f"toolkit-{release}"
        for name in ("bin", "include", "lib64"):
            (folder / name).mkdir(parents=True)
        if nvrtc:
            (folder / f"lib64/libnvrtc.so.{release.split('.')[0]}").write_text("library")
        nvcc = folder / "bin/nvcc"
        nvcc.write_text(NVCC.format(release))
        nvcc.chmod(0o755)
        for name, text in {"cuda_runtime_api.h": "", **headers}.items():
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

    def downloads(self):
        return self.calls.read_text().split() if self.calls.exists() else []

    def assertNoTemporaryFiles(self):
        left = {path.name for path in self.root.parent.iterdir()} - {"cuda", "cuda.lock"}
        self.assertEqual(left, set())

    def test_downloads_a_toolkit(self):
        result = self.run_script()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"), result.stderr)
        self.assertEqual(self.downloads(), WHEELS)
        self.assertTrue(os.access(self.root / "bin/nvcc", os.X_OK))
        for path in ("include/cudnn_frontend.h", "lib64/libnccl.so.2", "lib/libcublasLt.so.13"):
            self.assertTrue((self.root / path).is_file(), path)
        licences = self.root / "wheels/nvidia-cublas-13.1.0.3/licenses/License.txt"
        self.assertTrue(licences.is_file())
        for path in ("part", "cudnn", "lib/libcublasLt.alt.so.13"):
            self.assertFalse((self.root / path).exists(), path)
        self.assertNoTemporaryFiles()

    def test_second_run_downloads_nothing(self):
        self.run_script()
        self.calls.unlink()
        result = self.run_script()
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
        self.assertEqual(self.downloads(), [])

    def test_complete_toolkit_is_used(self):
        toolkit = self.toolkit()
        result = self.run_script(toolkit=toolkit)
        self.assertEqual((result.returncode, result.stdout), (0, f"{toolkit}\n"))
        self.assertEqual(self.downloads(), [])
        self.assertFalse(self.root.exists())

    def test_incomplete_toolkit_is_not_used(self):
        for number, (text, headers, nvrtc) in enumerate(
            (
                ("lacks NVRTC; using", COMPLETE, False),
                ("lacks NCCL; using", {**COMPLETE, "nccl.h": "#define NCCL_MAJOR 2\n"}, True),
                ("lacks cuBLAS, cuDNN, cuDNN's frontend, NCCL; using", {}, True),
            )
        ):
            with self.subTest(text):
                toolkit = self.toolkit(f"13.{number}", headers, nvrtc)
                result = self.run_script(toolkit=toolkit)
                self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
                self.assertIn(text, result.stderr)
        self.assertEqual(self.downloads(), WHEELS)

    def test_failed_download_leaves_no_files(self):
        missing = self.folder / "wheels/nvidia-cublas==13.1.0.3.whl"
        kept = missing.read_bytes()
        missing.unlink()
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("ERROR: no nvidia-cublas==13.1.0.3 here", result.stderr)
        self.assertIn("could not download nvidia-cublas 13.1.0.3", result.stderr)
        self.assertFalse(self.root.exists())
        self.assertNoTemporaryFiles()
        missing.write_bytes(kept)
        self.assertEqual(self.run_script().returncode, 0)

    def test_full_disk_is_reported_before_the_download(self):
        self.program("df", "#!/bin/sh\necho head; echo disk 9 9 204800 99% /\n")
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("has 200 MB free", result.stderr)
        self.assertEqual(self.downloads(), [])

    def test_print_downloads_nothing(self):
        result = self.run_script("--print")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("deploy/setup.sh cuda downloads one", result.stderr)
        self.assertEqual(self.downloads(), [])
        self.run_script()
        result = self.run_script("--print")
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.root}\n"))
        self.assertEqual(result.stderr, "")

    def test_invalid_arguments(self):
        result = self.run_script(toolkit=self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("has no bin/nvcc of CUDA 12 or newer", result.stderr)
        self.assertIn("unknown argument '--get'", self.run_script("--get").stderr)


if __name__ == "__main__":
    unittest.main()
