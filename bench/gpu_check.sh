#!/usr/bin/env bash
# Runs all CUDA tests and GPU benchmarks of a bundle on this machine: see `bench/gpu_check.sh --help`.
#
# The package gpu_check does the work. It is in the folder of this script, which may be called through a link; a
# copy of this script alone reads it from the bundle.
set -euo pipefail

command -v python3 >/dev/null || { echo "gpu_check: python3 is required to run the checks" >&2; exit 2; }
folder=$(dirname "$(readlink -f "$0")")
# Python replaces this process, so that it receives its signals.
[ ! -f "$folder/gpu_check/__main__.py" ] || exec python3 -B "$folder/gpu_check" "$@"
exec python3 -B -c '
import pathlib, sys, tarfile, tempfile

problems = []
with tempfile.TemporaryDirectory() as folder:
    for path in map(pathlib.Path, sys.argv[1:]):
        if (path / "gpu_check").is_dir():
            sys.path.insert(0, str(path.resolve()))
        elif path.is_file():
            try:
                # The package comes first in the archive.
                with tarfile.open(path) as tar:
                    for member in tar:
                        if not member.name.startswith("cadre-gpu/gpu_check"):
                            break
                        if member.isfile() and ".." not in member.name:
                            tar.extract(member, folder)
            except Exception as error:
                problems.append(f"; cannot unpack {path.name}: {error}")
    sys.path.insert(0, f"{folder}/cadre-gpu")
    try:
        from gpu_check.main import main
    except ImportError:
        print("gpu_check: the package gpu_check is neither beside this script nor in a bundle" + "".join(problems),
              file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
' "$@"
