"""The C interface, without a cluster."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from cadre import CadreError, _library
from cadre.client import _read


def test_exceptions_become_errors() -> None:
    library = _library.load()
    group = library.cadre_group_open(ctypes.byref(_library.GroupOptions(insecure=1)))
    shape = (ctypes.c_uint64 * 1)(1)
    # No vector has a negative size.
    assert library.cadre_group_add_parameter(group, b"w", shape, -1, 1, None) == _library.ERROR
    assert b"vector" in library.cadre_group_error(group)
    library.cadre_group_close(group, b"")


def test_run_files_are_text(tmp_path: Path) -> None:
    path = tmp_path / "run.textproto"
    path.write_text("name: 'a\u00e4'\n", encoding="utf-8-sig")
    assert _read(path) == "name: 'a\u00e4'\n"
    # Without a byte order mark, UTF-16 is UTF-8 with zeros, at which the library would stop.
    for encoding in ("utf-16", "utf-16-le"):
        path.write_text("name: 'a'\n", encoding=encoding)
        with pytest.raises(CadreError, match="run.textproto: is not a run file in UTF-8"):
            _read(path)


def _error(*calls: Callable[[ctypes.CDLL, int], int]) -> str:
    """The error of the last call on a new group; the others succeed."""
    library = _library.load()
    group = library.cadre_group_open(ctypes.byref(_library.GroupOptions(insecure=1)))
    try:
        assert [call(library, group) for call in calls] == [0] * (len(calls) - 1) + [_library.ERROR]
        return library.cadre_group_error(group).decode()
    finally:
        library.cadre_group_close(group, b"")


SHAPE = (ctypes.c_uint64 * 2)(2, 3)
VALUES = (ctypes.c_float * 6)()


def test_frozen_parameters_need_a_digest() -> None:
    for digest in (None, b""):
        error = _error(lambda library, group: library.cadre_group_add_frozen(group, b"w", SHAPE, 2, digest))
        assert error == "parameter 'w' is frozen, so it needs a digest"


def test_frozen_parameters_have_no_parts() -> None:
    error = _error(
        lambda library, group: library.cadre_group_add_frozen(group, b"w", SHAPE, 2, b"x"),
        lambda library, group: library.cadre_group_add_part(group, 0, 6, VALUES),
    )
    assert error == "parameter 'w' is frozen and has no parts"


def test_parts_are_elements_of_a_parameter() -> None:
    def part(begin: int, end: int) -> Callable[[ctypes.CDLL, int], int]:
        return lambda library, group: library.cadre_group_add_part(group, begin, end, VALUES)

    def parameter(library: ctypes.CDLL, group: int) -> int:
        return library.cadre_group_add_parameter(group, b"w", SHAPE, 2, 1, None)

    assert _error(part(0, 6)) == "a part needs a parameter"
    assert _error(parameter, part(0, 6), part(4, 7)) == "elements 4 to 7 of parameter 'w', which has 6"
    assert _error(parameter, part(4, 3)) == "elements 4 to 3 of parameter 'w', which has 6"
