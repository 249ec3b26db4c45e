"""The parameters and buffers of a module, as a run describes them."""

from __future__ import annotations

import enum
import hashlib
import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from cadre.errors import CadreError


# Modules that have the user's module under a name of their own, which is not part of its parameters'
# names. A module of another type may have any attribute of this name.
_WRAPPERS = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper": "_checkpoint_wrapped_module",
    "apex.parallel.distributed.DistributedDataParallel": "module",
}


def _types_of(module: torch.nn.Module) -> list[str]:
    """The names of the module's types, so that programs which do not use them need not import them."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__]


def plain_names(model: torch.nn.Module) -> Callable[[str], str]:
    """A function from a parameter's name to that without what wrappers such as torch.compile add to it."""
    plain = {"": ""}
    for path, module in model.named_modules(remove_duplicate=False):
        wrapped = next((_WRAPPERS[kind] for kind in _types_of(module) if kind in _WRAPPERS), None)
        for child in module._modules:
            parts = [plain[path]] if child == wrapped else [plain[path], child]
            plain[".".join(filter(None, (path, child)))] = ".".join(filter(None, parts))

    def plain_name(name: str) -> str:
        path, _, own = name.rpartition(".")
        return ".".join(filter(None, (plain.get(path, path), own)))

    return plain_name


def is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of the tensor."""
    return (tensor.to_local() if is_dtensor(tensor) else tensor).detach()


def intervals(whole: Sequence[int], part: Sequence[int], offset: Sequence[int]) -> list[tuple[int, int]]:
    """The intervals of elements of a tensor of shape `whole` that a part of it has, row-major."""
    if 0 in part:
        return []
    # The part has whole slices of the dimensions after `split`.
    split = max((d for d in range(len(whole)) if part[d] != whole[d]), default=0)
    size = math.prod(part[split:])
    intervals = []
    for index in itertools.product(*(range(o, o + n) for o, n in zip(offset[:split], part[:split]))):
        begin = 0
        for position, extent in zip((*index, *offset[split:]), whole):
            begin = begin * extent + position
        intervals.append((begin, begin + size))
    return intervals


def _order_of(placements: Sequence[Any], mesh: Sequence[int]) -> list[int] | None:
    """The dimensions of the mesh in the order in which they divide a tensor; None: not a box.

    A strided shard, which fully_shard makes of a parameter of tensor parallelism, divides what the
    later dimensions of the mesh have divided before.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    order: list[int] = []
    strided: list[int] = []
    for number, placement in enumerate(placements):
        if type(placement) is Shard:
            order.append(number)
        elif type(placement) is _StridedShard:
            strided.append(number)
        elif type(placement) is not Replicate:
            return None
    for number in reversed(strided):
        placement = placements[number]
        before = [one for one in order if one > number and placements[one].dim == placement.dim]
        earlier = [one for one in order if one < number and placements[one].dim == placement.dim]
        if earlier or math.prod(mesh[one] for one in before) != placement.split_factor:
            return None
        order.append(number)
    return order


def parts_of(name: str, tensor: Any) -> list[tuple[int, int]]:
    """The intervals of elements of a DTensor that this rank has, in the order of its local tensor."""
    mesh = tuple(tensor.device_mesh.shape)
    order = _order_of(tensor.placements, mesh)
    # Partial sums have no parts, and those of other strided shards need not be boxes.
    if order is None:
        raise CadreError(
            f"parameter '{name}' has placements {tensor.placements} on a mesh of shape {mesh}; only "
            "Replicate, Shard, and the strided shards of fully_shard are possible"
        )
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return []
    offset, shape = [0] * tensor.dim(), list(tensor.shape)
    for number in order:
        dim = tensor.placements[number].dim % tensor.dim()
        # As torch.chunk divides.
        chunk = -(-shape[dim] // mesh[number])
        begin = min(chunk * coordinate[number], shape[dim])
        offset[dim] += begin
        shape[dim] = min(chunk, shape[dim] - begin)
    held = tuple(tensor.to_local().shape)
    if tuple(shape) != held:
        raise CadreError(
            f"parameter '{name}' has a local part of shape {held}; placements {tensor.placements} of "
            f"shape {tuple(tensor.shape)} have {tuple(shape)} here"
        )
    return intervals(tensor.shape, shape, offset)


def digest_of(tensor: Any) -> str:
    """A digest of all values of a frozen parameter. A collective for a DTensor."""
    whole = tensor.full_tensor() if is_dtensor(tensor) else tensor
    digest = hashlib.blake2b(_bytes_of(whole), digest_size=8)
    # The elements of a parameter in 4 bits (bitsandbytes) are codes, whose values depend on scales.
    scales = getattr(tensor, "quant_state", None)
    if scales is not None:
        for name, part in sorted(scales.as_dict(packed=True).items()):
            digest.update(name.encode())
            digest.update(_bytes_of(part))
    return digest.hexdigest()


def _bytes_of(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


class Role(enum.Enum):
    """How a run treats a parameter or buffer."""

    TRAINED = "averaged, coded and accelerated as the run requires"
    STATISTIC = "only averaged"
    FROZEN = "compared by its digest when a program joins"


class Found(NamedTuple):
    """A parameter or buffer of a module; complex values as pairs of real ones."""

    name: str
    tensor: torch.Tensor
    role: Role

    @staticmethod
    def exchanged(name: str, tensor: torch.Tensor, role: Role) -> Found:
        """Raises CadreError if the values cannot be exchanged."""
        if tensor.is_complex():
            if is_dtensor(tensor):
                raise CadreError(f"parameter '{name}' is a DTensor of {tensor.dtype}; complex values "
                                 "can only be exchanged in plain tensors")
            # Shares the memory of the parameter.
            tensor = torch.view_as_real(tensor.detach())
        elif not tensor.is_floating_point():
            raise CadreError(f"parameter '{name}' has type {tensor.dtype}; only floating-point and "
                             "complex values can be exchanged")
        if tensor.layout is not torch.strided:
            raise CadreError(f"parameter '{name}' has layout {tensor.layout}; only dense tensors can be "
                             "exchanged")
        return Found(name, tensor, role)

    def to_spec(self, digests: Mapping[str, str]) -> dict[str, Any]:
        """The fields of OpaqueParameter (proto/cadre/v1/run.proto)."""
        spec: dict[str, Any] = {"name": self.name, "shape": list(self.tensor.shape)}
        if self.role is Role.FROZEN:
            return {**spec, "frozen_digest": digests[self.name]}
        return {**spec, "trained": self.role is Role.TRAINED}


# Elements of a low-precision parameter that are converted at a time.
_CHUNK = 1 << 20


@dataclass
class Parameter:
    """A parameter or buffer that is exchanged, and the memory through which the library does it.

    The memory is fp32. Values of a type with fewer bits, such as bf16, are those of the memory rounded.
    What the program changes is added to the memory, so that the memory keeps what the rounding has
    removed: otherwise a change of a version by less than half a unit in the last place would be undone
    by the next contribution.
    """

    name: str
    tensor: torch.Tensor
    trained: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: torch.Tensor
    # Whether the memory has values of the program, fetched or stored.
    current: bool = False
    # Elements, by chunk, whose values were not those of the memory rounded when they were fetched.
    unlike: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def aliased(self) -> bool:
        local = local_of(self.tensor)
        return local.data_ptr() == self.memory.data_ptr() and local.dtype == torch.float32

    def fetch(self, local: torch.Tensor, asynchronous: bool) -> None:
        """Brings the memory to the program's values."""
        if self.current and torch.finfo(local.dtype).bits < 32:
            self._add_changes(local.reshape(-1))
        else:
            self.memory.view(local.shape).copy_(local, non_blocking=asynchronous)
        self.current = True

    def store(self, local: torch.Tensor, asynchronous: bool) -> None:
        """Gives the program the memory's values."""
        local.copy_(self.memory.view(local.shape), non_blocking=asynchronous)
        self.current = True
        self.unlike.clear()

    def _add_changes(self, local: torch.Tensor) -> None:
        for begin in range(0, local.numel(), _CHUNK):
            memory = self.memory[begin:begin + _CHUNK]
            now = local[begin:begin + _CHUNK].cpu()
            before = memory.to(local.dtype)
            if begin in self.unlike:
                elements, values = self.unlike.pop(begin)
                before[elements] = values
            memory += now.float() - before.float()
            elements = (memory.to(local.dtype) != now).nonzero().view(-1)
            if elements.numel() > 0:
                self.unlike[begin] = (elements, now[elements])

    @staticmethod
    def of(found: Found) -> Parameter:
        name, tensor, role = found
        local = local_of(tensor)
        plain = local.device.type == "cpu" and local.dtype == torch.float32 and local.is_contiguous()
        memory = (
            local.view(-1)
            if plain
            else torch.empty(
                local.numel(), dtype=torch.float32, device="cpu",
                pin_memory=local.device.type == "cuda",
            )
        )
        trained = role is Role.TRAINED
        return Parameter(name, tensor, trained, tuple(tensor.shape), tensor.dtype, memory)


def _is_exchangeable(buffer: torch.Tensor) -> bool:
    """Whether fp32 can represent an average of the buffer, and the buffer can receive it."""
    if is_dtensor(buffer):
        return True
    # PyTorch refuses to change an inference tensor.
    if buffer.layout is not torch.strided or buffer.is_inference():
        return False
    expanded = any(size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride()))
    return not expanded and bool(torch.isfinite(buffer.detach().float()).all())


def _version_of(tensor: torch.Tensor) -> int | None:
    """A number that changes with the tensor; None: PyTorch does not count the changes."""
    return None if tensor.is_inference() else tensor._version


class Constants:
    """The floating-point buffers of a model that are not exchanged, such as masks of -inf.

    A run treats them like frozen parameters, and they must not change while the model is attached.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._buffers = {
            name: (buffer, _version_of(buffer), digest_of(buffer))
            for name, buffer in _buffers_of(model)
            if not _is_exchangeable(buffer)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def check_unchanged(self, model: torch.nn.Module) -> None:
        """Raises CadreError if one of them has changed."""
        if not self._buffers:
            return
        for name, buffer in _buffers_of(model):
            if name not in self:
                continue
            before, version, digest = self._buffers[name]
            if buffer is before and version is not None and _version_of(buffer) == version:
                continue
            if digest_of(buffer) != digest:
                raise CadreError(
                    f"buffer '{name}' is not exchanged, because it was not finite, was expanded, was not "
                    "dense, or was made in inference mode when the model was attached, and it has changed "
                    "since"
                )
            self._buffers[name] = (buffer, _version_of(buffer), digest)


def _buffers_of(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The floating-point buffers of the state that have elements."""
    plain_name = plain_names(model)
    persistent = {id(value) for value in model.state_dict(keep_vars=True).values()}
    return [
        (plain_name(name), buffer)
        # Not the names that wrappers of activation checkpointing pretend, which are in no module.
        for name, buffer in torch.nn.Module.named_buffers(model)
        if id(buffer) in persistent and buffer.is_floating_point() and buffer.numel() > 0
    ]


def parameters_of(model: torch.nn.Module, constants: Container[str] = ()) -> list[Found]:
    """Parameters and the floating-point buffers of the state, in the model's order.

    Those without elements are left out, because they have nothing to exchange.
    """
    plain_name = plain_names(model)
    found = [
        Found.exchanged(plain_name(name), parameter, Role.TRAINED)
        if parameter.requires_grad
        else Found(plain_name(name), parameter, Role.FROZEN)
        for name, parameter in torch.nn.Module.named_parameters(model)
        if parameter.numel() > 0
    ]
    for name, buffer in _buffers_of(model):
        found.append(Found(name, buffer, Role.FROZEN if name in constants else Role.STATISTIC))
    return found


def refuse_unsupported(model: torch.nn.Module) -> None:
    """Raises CadreError if the parameters of the model are not its values."""
    for name, module in model.named_modules():
        fsdp = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel"
        if fsdp in _types_of(module):
            raise CadreError(
                f"{f'module {name!r}' if name else 'the model'} is a FullyShardedDataParallel (FSDP1), "
                "whose ranks have flat parts of the parameters; only fully_shard (FSDP2) is supported"
            )
    for name, parameter in model.named_parameters():
        # Megatron's layers set this attribute on the parts of tensor parallelism.
        if getattr(parameter, "tensor_model_parallel", False) and not is_dtensor(parameter):
            raise CadreError(f"parameter '{name}' is divided by Megatron's tensor parallelism, which is not "
                             "supported; use parallelize_module of torch.distributed.tensor, whose parameters "
                             "are DTensors")
        # DeepSpeed's ZeRO stage 3 leaves empty parameters with this attribute.
        if hasattr(parameter, "ds_id"):
            raise CadreError(f"parameter '{name}' is divided by DeepSpeed (ZeRO stage 3), which is not "
                             "supported; use fully_shard")


def with_model(
    run: Mapping[str, Any], parameters: list[dict[str, Any]], test_samples: int
) -> Mapping[str, Any]:
    """The run with these parameters, unless it has a model."""
    opaque = run.get("model", {"opaque": {}}).get("opaque")
    if opaque is None or "parameter" in opaque:
        return run
    model = {"opaque": {"test_samples": test_samples, **opaque, "parameter": parameters}}
    return {**run, "model": model}
