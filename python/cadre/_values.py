"""The values of a model that a run exchanges, in the memory through which the library does it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from cadre._parameters import (
    Constants,
    Found,
    Parameter,
    Role,
    digest_of,
    is_dtensor,
    local_of,
    parameters_of,
    parts_of,
    refuse_unsupported,
)
from cadre._ranks import of_all_ranks
from cadre.errors import CadreError


class Values:
    """The parameters and buffers of a model, and how they are copied to and from the library's memory.

    With `pipeline`, each rank has a part of the model's parameters, and all ranks together have all.
    """

    def __init__(self, model: torch.nn.Module, *, pipeline: bool) -> None:
        refuse_unsupported(model)
        self._model = model
        self._constants = Constants(model)
        self._found = {one.name: one for one in parameters_of(model, self._constants)}
        digests = {
            one.name: digest_of(one.tensor) for one in self._found.values() if one.role is Role.FROZEN
        }
        own = [one.to_spec(digests) for one in self._found.values()]
        # The fields of OpaqueParameter of all parameters, in the order of the run.
        self.specs = _united(of_all_ranks(own)) if pipeline else own
        if not any(spec.get("trained") for spec in self.specs):
            raise CadreError("the model has no parameters that require gradients")
        self._parameters: list[Parameter] = []

    def register(self, library: ctypes.CDLL, handle: int, check: Callable[[int], None]) -> None:
        """Registers the parameters; `check` raises the library's error."""
        for spec in self.specs:
            name = spec["name"].encode()
            shape = (ctypes.c_uint64 * len(spec["shape"]))(*spec["shape"])
            if "frozen_digest" in spec:
                digest = spec["frozen_digest"].encode()
                check(library.cadre_group_add_frozen(handle, name, shape, len(shape), digest))
                continue
            found = self._found.get(spec["name"])
            parameter = Parameter.of(found) if found is not None else None
            whole = parameter is not None and not is_dtensor(parameter.tensor)
            address = parameter.memory.data_ptr() if parameter is not None and whole else None
            check(library.cadre_group_add_parameter(
                handle, name, shape, len(shape), int(spec["trained"]), address))
            if parameter is None:
                continue
            self._parameters.append(parameter)
            if whole:
                continue
            values = parameter.memory.data_ptr()
            for begin, end in parts_of(parameter.name, parameter.tensor):
                check(library.cadre_group_add_part(handle, begin, end, values))
                values += (end - begin) * parameter.memory.element_size()

    def fetch(self) -> None:
        """Copies the model's values to the registered memory. Raises CadreError if the model has changed."""
        self._check_unchanged()
        self._copy(Parameter.fetch)

    def store(self) -> None:
        """Copies the values of the registered memory to the model."""
        self._copy(Parameter.store)

    def _check_unchanged(self) -> None:
        """Raises CadreError if the model has other parameters than when it was attached."""
        self._constants.check_unchanged(self._model)
        found = parameters_of(self._model, self._constants)
        now = {one.name: one.tensor for one in found if one.role is not Role.FROZEN}
        for parameter in self._parameters:
            tensor = now.pop(parameter.name, None)
            before = f"{list(parameter.shape)} {parameter.dtype}"
            if tensor is None:
                raise CadreError(
                    f"parameter '{parameter.name}' was {before} when the model was attached, "
                    "and is missing or frozen now"
                )
            if tuple(tensor.shape) != parameter.shape or tensor.dtype != parameter.dtype:
                raise CadreError(
                    f"parameter '{parameter.name}' was {before} when the model was attached, "
                    f"and is {list(tensor.shape)} {tensor.dtype} now"
                )
            parameter.tensor = tensor
        for name, tensor in now.items():
            raise CadreError(
                f"parameter '{name}' {list(tensor.shape)} {tensor.dtype} was added, or was frozen, "
                "when the model was attached"
            )

    def _copy(self, copy: Callable[[Parameter, torch.Tensor, bool], None]) -> None:
        # Copies between pinned memory and a device follow the steps on its current stream. The library
        # uses the memory as soon as this function returns.
        devices = set()
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.aliased():
                    continue
                local = local_of(parameter.tensor)
                asynchronous = local.device.type == "cuda"
                copy(parameter, local, asynchronous)
                if asynchronous:
                    devices.add(local.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()


def _united(by_rank: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The parameters of all ranks, by rank. Raises CadreError if two ranks describe one differently."""
    united: dict[str, tuple[int, dict[str, Any]]] = {}
    for rank, specs in enumerate(by_rank):
        for spec in specs:
            first, known = united.setdefault(spec["name"], (rank, spec))
            if known != spec:
                raise CadreError(f"parameter '{spec['name']}' is {known} on rank {first}, and {spec} on "
                                 f"rank {rank}")
    return [spec for _, spec in united.values()]
