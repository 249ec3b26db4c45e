"""The C interface, without a cluster."""

from __future__ import annotations

import ctypes

from cadre import _library


def test_exceptions_become_errors() -> None:
    library = _library.load()
    group = library.cadre_group_open(ctypes.byref(_library.GroupOptions(insecure=1)))
    shape = (ctypes.c_uint64 * 1)(1)
    # No vector has a negative size.
    assert library.cadre_group_add_parameter(group, b"w", shape, -1, 1, None) == _library.ERROR
    assert b"vector" in library.cadre_group_error(group)
    library.cadre_group_close(group, b"")
