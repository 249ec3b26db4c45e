"""The coordinator's services, without PyTorch."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from cadre import _library
from cadre.errors import CadreError

if TYPE_CHECKING:
    import numpy

ENDED = ("RUN_STATE_DONE", "RUN_STATE_FAILED", "RUN_STATE_STOPPED")

# A run as a mapping (the fields of RunSpec in proto/cadre/v1/run.proto), or the path of a run file.
RunSpec = Union[Mapping[str, Any], os.PathLike]


def has_ended(status: Mapping[str, Any]) -> bool:
    """Whether nothing more happens without an operator: a run that has diverged is parked."""
    return status["state"] in ENDED or bool(status.get("diverged"))


def is_run_file(run: str | RunSpec) -> bool:
    """Whether this is the path of a run file, and neither the id or name of a run nor a mapping."""
    return isinstance(run, os.PathLike) or (
        isinstance(run, str) and (os.sep in run or run.endswith(".textproto"))
    )


def _read(path: os.PathLike) -> str:
    """Returns the text of a run file, with or without a byte order mark."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CadreError(f"{path}: is not a run file in UTF-8: {error}") from None
    if "\0" in text:  # the library would read the text up to it
        raise CadreError(f"{path}: is not a run file in UTF-8: it contains a zero byte")
    return text


class Client:
    """A client of the coordinator.

    `coordinator` is "host:port", or several of them separated by commas, of which one leads. `tls`
    is a folder with the certificate of an operator or, for status alone, of a viewer; `insecure`
    turns TLS off. Methods raise CadreError with the coordinator's reason. Not thread-safe.
    """

    def __init__(self, coordinator: str, *, tls: str | None = None, insecure: bool = False) -> None:
        self._library = _library.load()
        self._handle = self._library.cadre_client_open(
            coordinator.encode(), _library.encode(tls), int(insecure)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the client."""
        if self._handle:
            self._library.cadre_client_close(self._handle)
            self._handle = None

    def _answer(self, text: bytes | None) -> dict[str, Any]:
        if text is None:
            raise CadreError(self._library.cadre_client_error(self._handle).decode())
        return json.loads(text)

    def read(self, spec: RunSpec) -> Mapping[str, Any]:
        """Returns a run as a mapping: that of a run file, or `spec` itself. Does not check the run."""
        if isinstance(spec, Mapping):
            return spec
        text = _read(spec)
        if text.lstrip().startswith("{"):
            return json.loads(text)
        name = os.fsencode(spec)
        return self._answer(self._library.cadre_client_parse(self._handle, name, text.encode()))

    def submit(self, spec: RunSpec, *, join_existing: bool = False) -> str:
        """Submits a run and returns its id.

        With `join_existing`, the run of the same name is returned if it has not ended; another spec
        is then an error that names the first difference.
        """
        return self._submit(spec, int(join_existing))["run"]

    def submit_or_join(self, spec: RunSpec, *, join_ended: bool) -> dict[str, Any]:
        """Submits a run, unless one of the same name has not ended (SubmitReply).

        With `join_ended`, a run of that name that has reached its end is returned as well; `ended`
        then says so.
        """
        return self._submit(spec, 2 if join_ended else 1)

    def _submit(self, spec: RunSpec, join: int) -> dict[str, Any]:
        text = json.dumps(spec) if isinstance(spec, Mapping) else _read(spec)
        return self._answer(self._library.cadre_client_submit(self._handle, text.encode(), join))

    def status(self, run: str = "") -> dict[str, Any]:
        """Returns the status of the cluster, with one run or with all (StatusReply)."""
        return self._answer(self._library.cadre_client_status(self._handle, run.encode()))

    def run_status(self, run: str) -> dict[str, Any]:
        """Returns the status of one run (RunStatus)."""
        return self.status(run)["runs"][0]

    def watch(self, run: str, *, interval: float = 1.0) -> Iterator[dict[str, Any]]:
        """Yields the status of the run whenever its version or state has changed, until it has ended."""
        seen = None
        while True:
            status = self.run_status(run)
            run = status["run"]  # its name may stand for a newer run later
            now = (status["state"], status["version"])
            if now != seen:
                seen = now
                yield status
            if has_ended(status):
                return
            time.sleep(interval)

    def history(self, run: str, *, after: int = 0) -> dict[str, Any]:
        """Returns the entries of the run's history with higher numbers than `after` (HistoryReply)."""
        return self._answer(self._library.cadre_client_history(self._handle, run.encode(), after))

    def save(self, run: str, path: str | os.PathLike, *, dtype: str = "fp32") -> dict[str, Any]:
        """Writes the newest version of the run to a safetensors file; the run goes on meanwhile.

        `dtype` is fp32, the type of the version, or bf16 or fp16, to which the values are rounded.
        Returns its version, step and digest (LocateReply).
        """
        answer = self._library.cadre_client_pull(
            self._handle, run.encode(), os.fsencode(path), dtype.encode())
        return self._answer(answer)

    def pull(self, run: str) -> dict[str, numpy.ndarray]:
        """Returns the newest version of the run: fp32 arrays by the names of the parameters.

        Requires the packages of `pip install cadre[client]`.
        """
        from safetensors.numpy import load_file

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            self.save(run, file)
            return load_file(file)

    def wait(self, run: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Returns the status of the run when it has ended. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.run_status(run)
            run = status["run"]  # its name may stand for a newer run later
            if has_ended(status):
                return status
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {run} is {status['state']} after {timeout} s")
            time.sleep(0.2)

    def stop(self, run: str, reason: str = "") -> None:
        """Ends a run; its last version is kept."""
        self._answer(self._library.cadre_client_stop(self._handle, run.encode(), reason.encode()))
