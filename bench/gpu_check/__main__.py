import pathlib
import sys

# This folder is run as a program; its modules are those of the package `gpu_check`.
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from gpu_check.main import main  # noqa: E402

sys.exit(main())
