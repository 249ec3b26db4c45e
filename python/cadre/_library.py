"""Loads libcadre_group and declares its functions (group/cadre_group.h)."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

ERROR, WAIT, FETCH, STORE, TRAIN, ENDED, EVALUATE = -1, 0, 1, 2, 3, 4, 5
_ABI = 3


class GroupOptions(ctypes.Structure):
    """cadre_group_options."""

    _fields_ = [
        ("coordinator", ctypes.c_char_p),
        ("tls", ctypes.c_char_p),
        ("insecure", ctypes.c_int32),
        ("run", ctypes.c_char_p),
        ("program", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("ranks", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("listen", ctypes.c_char_p),
        ("advertise", ctypes.c_char_p),
        ("dial_seconds", ctypes.c_double),
        ("test_samples", ctypes.c_uint64),
        ("notice_seconds", ctypes.c_double),
    ]


class GroupState(ctypes.Structure):
    """cadre_group_state."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("digest", ctypes.c_uint64),
        ("participants", ctypes.c_uint32),
        ("included", ctypes.c_int32),
        ("step", ctypes.c_uint32),
        ("next_boundary", ctypes.c_uint32),
        ("total_steps", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("groups", ctypes.c_uint32),
        ("batch", ctypes.c_uint32),
        ("sample_position", ctypes.c_uint64),
        ("discarded_steps", ctypes.c_uint64),
        ("connected", ctypes.c_int32),
        ("evaluate_begin", ctypes.c_uint64),
        ("evaluate_end", ctypes.c_uint64),
        ("drained", ctypes.c_int32),
    ]


_handle = ctypes.c_void_p
_text = ctypes.c_char_p
_SIGNATURES = {
    "cadre_group_abi": (ctypes.c_int32, []),
    "cadre_group_open": (_handle, [ctypes.POINTER(GroupOptions)]),
    "cadre_group_add_parameter": (
        ctypes.c_int32,
        [_handle, _text, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int32, ctypes.c_int32, _handle],
    ),
    "cadre_group_add_frozen": (
        ctypes.c_int32,
        [_handle, _text, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int32, _text],
    ),
    "cadre_group_add_part": (ctypes.c_int32, [_handle, ctypes.c_uint64, ctypes.c_uint64, _handle]),
    "cadre_group_load": (ctypes.c_int32, [_handle, _text]),
    "cadre_group_join": (ctypes.c_int32, [_handle]),
    "cadre_group_next": (ctypes.c_int32, [_handle, ctypes.c_double]),
    "cadre_group_step": (ctypes.c_int32, [_handle]),
    "cadre_group_report_loss": (None, [_handle, ctypes.c_double]),
    "cadre_group_report_metric": (ctypes.c_int32, [_handle, _text, ctypes.c_double]),
    "cadre_group_report_tokens": (ctypes.c_int32, [_handle, ctypes.c_uint64]),
    "cadre_group_report_evaluation": (
        None,
        [_handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double],
    ),
    "cadre_group_alive": (None, [_handle]),
    "cadre_group_get_state": (None, [_handle, ctypes.POINTER(GroupState)]),
    "cadre_group_run": (_text, [_handle]),
    "cadre_group_error": (_text, [_handle]),
    "cadre_group_interrupt": (None, [_handle]),
    "cadre_group_load": (ctypes.c_int32, [_handle, _text]),
    "cadre_group_finish": (ctypes.c_int32, [_handle]),
    "cadre_group_leave": (None, [_handle, ctypes.c_double]),
    "cadre_group_close": (None, [_handle, _text]),
    "cadre_client_open": (_handle, [_text, _text, ctypes.c_int32]),
    "cadre_client_parse": (_text, [_handle, _text, _text]),
    "cadre_client_submit": (_text, [_handle, _text, ctypes.c_int32]),
    "cadre_client_status": (_text, [_handle, _text]),
    "cadre_client_history": (_text, [_handle, _text, ctypes.c_uint64]),
    "cadre_client_pull": (_text, [_handle, _text, _text, _text]),
    "cadre_client_stop": (_text, [_handle, _text, _text]),
    "cadre_client_error": (_text, [_handle]),
    "cadre_client_close": (None, [_handle]),
}


def _path() -> Path:
    configured = os.environ.get("CADRE_GROUP_LIBRARY")
    return Path(configured) if configured else Path(__file__).with_name("libcadre_group.so")


@functools.cache
def load() -> ctypes.CDLL:
    """Returns the library. Raises OSError, naming the file, if it cannot be loaded."""
    library = ctypes.CDLL(str(_path()))
    if library.cadre_group_abi() != _ABI:
        raise OSError(f"{_path()} has interface {library.cadre_group_abi()}, this package {_ABI}")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def encode(text: str | None) -> bytes | None:
    """A C string, or null."""
    return None if text is None else text.encode()


def open_group(**options: str | float | None) -> int:
    """Opens a group with these fields of GroupOptions. Returns its handle."""
    fields = {name: encode(value) if isinstance(value, str) else value for name, value in options.items()}
    return load().cadre_group_open(ctypes.byref(GroupOptions(**fields)))
