"""Unpacks a bundle with Python's standard library alone."""

import json
import lzma
import pathlib
import tarfile

FOLDER = "cadre-gpu"
# The first bytes of archives that Python's library does not unpack on every machine.
UNSUPPORTED = {b"\x28\xb5\x2f\xfd": "Zstandard", b"\x04\x22\x4d\x18": "LZ4"}


class Refused(Exception):
    """A bundle that cannot be used; the text is the reason."""


def extract(tar, archive, work):
    for member in tar:
        path = pathlib.PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise Refused(f"{archive.name} is not a bundle: '{member.name}' is not a file of it")
        tar.extract(member, work)


def unpack(archive, work):
    """The folder of an unpacked archive."""
    with archive.open("rb") as file:
        compression = UNSUPPORTED.get(file.read(4))
    if compression:
        raise Refused(f"{archive.name} is compressed with {compression}, which Python's standard library does not"
                      " unpack: bench/gpu_bundle.sh creates a .tar.xz file")  # fmt: skip
    try:
        with lzma.open(archive) as file:
            with tarfile.open(fileobj=file, mode="r|") as tar:
                extract(tar, archive, work)
            # The checksum is at the end.
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise Refused(f"cannot unpack {archive.name}: {error}") from error
    if not (work / FOLDER / "bundle.json").is_file():
        raise Refused(f"{archive.name} is not a bundle: bench/gpu_bundle.sh creates one")
    return work / FOLDER


def read_about(bundle, name):
    """What bundle.json states. Errors: Refused if a file of the bundle is missing or not complete."""
    try:
        about = json.loads((bundle / "bundle.json").read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{name} is not a bundle: {error}") from error
    for path, size in about["files"].items():
        found = (bundle / path).stat().st_size if (bundle / path).is_file() else None
        if found is None:
            raise Refused(f"{name} is incomplete: {path} is missing")
        if found != size:
            raise Refused(f"{name} is incomplete: {path} has {found} of {size} bytes")
    return about
