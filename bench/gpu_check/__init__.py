"""The checks of a bundle on a machine with a GPU: see `bench/gpu_check.sh --help`.

Only Python's standard library is needed, of version 3.9 or newer.
"""
