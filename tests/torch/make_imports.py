#!/usr/bin/env python3
"""Writes the networks of import_models.py as ONNX files without weights, and what PyTorch computes.

Needs PyTorch, onnx, onnxscript, transformers and safetensors (the fixtures in folder imports were
written with PyTorch 2.13.0, onnx 1.23.2, onnxscript 0.7.2 and transformers 5.24.0); the tests need
no Python.

  python3 tests/torch/make_imports.py [--out FOLDER] [NAME ...]

Weights, inputs and labels are numbers that follow from names; import_numbers.cc has the same
functions. So a fixture consists of the graph and of

  values/NAME    biases that differ from these numbers, so that no input of a ReLU, or of another function
                 whose derivative has a step, is so near the step that rounding decides the side: a
                 single value on the other side changes the gradients of small networks by percents
  logits         log(softmax) of every sample in evaluation (of tokens: the mean over the tokens)
  loss           the mean loss of the batch in training
  changes/NAME   of each tensor: norm, and product with pseudo-random signs, of its change by one step
                 of SGD with rate 0.125; for running statistics that of the step. The third number is
                 the larger deviation of the two in float32.

all computed in float64, except that deviation.
"""

import argparse
import contextlib
import copy
import logging
import pathlib
import warnings

import numpy
import onnx
import safetensors.numpy
import torch
import torch.nn.functional as F

import import_models

RATE = 0.125
SAMPLES = 8
# Functions by their names in torch.nn.functional (ReLU6 is a hardtanh), and where their derivatives have steps.
STEPS = {"relu": (0,), "hardtanh": (0, 6), "hardswish": (-3, 3), "hardsigmoid": (-3, 3)}
# The distance from a step, as a multiple of the effect of rounding on the function's inputs.
MARGIN = 8
MASK = (1 << 64) - 1
# Transformers are exported by the newer exporter, and networks with batch norm by the older, as in
# docs/import.md.
DYNAMO = ("vit_b_16", "gpt2", "bert", "bert_padded", "encoder_padded", "vgg11")
# Networks of tokens that have padding: token 0.
PADDED = ("bert_padded", "encoder_padded")


def hash_of(name):
    result = 0xcbf29ce484222325
    for byte in name.encode():
        result = ((result ^ byte) * 0x100000001b3) & MASK
    return result


def bits_of(name, count):
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(hash_of(name)) \
            + (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1)) \
            * numpy.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
        return x ^ (x >> numpy.uint64(31))


def uniform_of(name, count):
    return (bits_of(name, count) >> numpy.uint64(40)).astype(numpy.float64) / 2.0 ** 23 - 1


def values_of(name, shape):
    u = uniform_of(name, int(numpy.prod(shape)))
    if len(shape) >= 2:
        values = u * numpy.sqrt(3.0 / numpy.prod(shape[1:]))
    elif name.endswith("running_var"):
        values = 1 + 0.5 * numpy.abs(u)
    elif name.endswith("weight"):
        values = 1 + 0.2 * u
    else:
        values = 0.1 * u
    return torch.from_numpy(values.astype(numpy.float32).reshape(shape))


def projection(name, tensor):
    values = tensor.double().flatten().numpy()
    signs = 1.0 - 2.0 * (bits_of("signs of " + name, len(values)) & numpy.uint64(1)).astype(numpy.float64)
    return numpy.array([numpy.sqrt((values ** 2).sum()), (values * signs).sum()], numpy.float32)


def tensors_of(network):
    """Parameters and running statistics by the names in the graph; shared tensors once."""
    named = {name: p for name, p in network.named_parameters(remove_duplicate=False)}
    named |= {name: b for name, b in network.named_buffers() if b.is_floating_point()}
    return named


def arguments_of(network, inputs):
    """The inputs, and their mask if it is an input of the network."""
    return (inputs, (inputs != 0).long()) if getattr(network, "mask_input", False) else (inputs,)


def export(name, network, example, path):
    if name in DYNAMO:
        program = torch.onnx.export(network.eval(), arguments_of(network, example), dynamo=True, optimize=False, verbose=False)
        program.save(path, external_data=False)
    else:
        torch.onnx.export(network.train(), (example,), path, dynamo=False, opset_version=17,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    model = onnx.load(path)
    names = tensors_of(network)
    offset = 0
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.name not in names:
            continue
        size = 4 * int(numpy.prod(list(tensor.dims)))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        offset += size
    del model.graph.value_info[:]
    for node in model.graph.node:  # only for people
        node.doc_string = ""
        del node.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    path.write_bytes(model.SerializeToString(deterministic=True))
    return {tensor.name for tensor in model.graph.initializer}


@contextlib.contextmanager
def before_activations(visit):
    """Replaces the input of each function of STEPS by visit(input, steps)."""
    originals = {name: getattr(F, name) for name in STEPS}

    def replaced(name):
        return lambda x, *others, **named: originals[name](visit(x, STEPS[name]), *others, **named)

    for name in STEPS:
        setattr(F, name, replaced(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(F, name, original)


def activation_inputs(network, inputs):
    seen = []

    def visit(x, steps):
        seen.append(x.detach().double().clone())
        return x

    with before_activations(visit), torch.no_grad():
        copy.deepcopy(network).train()(inputs)
    return seen


def shift_of(values, steps, margin):
    """The number nearest to 0 whose sum with any of the values is further than the margin from all steps."""
    steps = numpy.array(steps, numpy.float64)
    centers = (steps[:, None] - values[None, :]).ravel()
    centers = centers[numpy.abs(centers) < 0.25]
    candidates = numpy.concatenate([[0.0], centers - 1.001 * margin, centers + 1.001 * margin])
    candidates = candidates[numpy.argsort(numpy.abs(candidates), kind="stable")]
    return next(c for c in candidates if (numpy.abs(centers - c) >= margin).all())


def keep_from_steps(network, inputs):
    """Changes biases as described for values/NAME, and returns those that have changed, by name."""
    exact = activation_inputs(copy.deepcopy(network).double(), inputs)
    rounded = activation_inputs(network, inputs.float())
    margins = iter([MARGIN * (a - b).abs().max().item() for a, b in zip(exact, rounded)])
    moving = copy.deepcopy(network).double().train()
    latest, changed = [None], set()

    def visit(x, steps):
        margin = next(margins)
        by_channel = x.detach().transpose(0, 1).reshape(x.shape[1], -1).numpy()
        shift = torch.tensor([shift_of(values, steps, margin) for values in by_channel])
        if shift.any():
            latest[0].bias += shift
            changed.add(latest[0])
        return x + shift.reshape(1, -1, *[1] * (x.dim() - 2))

    for module in moving.modules():
        if getattr(module, "bias", None) is not None:
            module.register_forward_hook(lambda module, *_: latest.__setitem__(0, module))
    with before_activations(visit), torch.no_grad():
        moving(inputs)
        names = [f"{name}.bias" for name, module in moving.named_modules() if module in changed]
        for name in names:
            network.get_parameter(name).copy_(moving.get_parameter(name))
        return {name: network.get_parameter(name).numpy().copy() for name in names}


def results_of(network, inputs, in_graph):
    tensors = {name: t for name, t in tensors_of(network).items() if name in in_graph}
    before = {name: t.detach().clone() for name, t in tensors.items()}
    network.eval()
    logits = F.log_softmax(network(*arguments_of(network, inputs)), -1)
    if logits.dim() == 3:
        logits = logits.mean(1)
    results = {"logits": logits.detach().float().numpy()}
    network.train()
    scores = network(*arguments_of(network, inputs)).flatten(0, -2)
    labels = torch.from_numpy((bits_of("labels", len(scores)) % numpy.uint64(scores.shape[-1]))
                              .astype(numpy.int64))
    loss = F.cross_entropy(scores, labels)
    loss.backward()
    results["loss"] = loss.detach().float().reshape(1).numpy()
    torch.optim.SGD(network.parameters(), lr=RATE).step()
    for name, tensor in tensors.items():
        results[f"changes/{name}"] = projection(name, before[name] - tensor.detach())
    return results


def with_rounding(exact, rounded):
    for name in exact:
        if name.startswith("changes/"):
            deviation = numpy.abs(exact[name] - rounded[name]).max()
            exact[name] = numpy.append(exact[name], deviation)
    return exact


def make(name, out):
    create, sample = import_models.MODELS[name]
    torch.manual_seed(1)
    network = create()
    with torch.no_grad():
        for key, tensor in tensors_of(network).items():
            tensor.copy_(values_of(key, tuple(tensor.shape)))
    example = sample(SAMPLES)
    path = out / f"{name}.onnx"
    in_graph = export(name, network, example, path)
    # A tensor with several names has the numbers of the name that the graph uses.
    with torch.no_grad():
        for key, tensor in tensors_of(network).items():
            if key in in_graph:
                tensor.copy_(values_of(key, tuple(tensor.shape)))
    if example.is_floating_point():
        inputs = torch.from_numpy(1.5 * uniform_of("inputs", example.numel())
                                  .astype(numpy.float64)).float().double().reshape(example.shape)
    else:
        vocabulary = next(m.num_embeddings for m in network.modules()
                          if isinstance(m, torch.nn.Embedding))
        inputs = 1 + torch.from_numpy((bits_of("inputs", example.numel()) % numpy.uint64(vocabulary - 1))
                                      .astype(numpy.int64)).reshape(example.shape)
    if name in PADDED:
        eighths = torch.from_numpy((bits_of("padding", example.numel()) % numpy.uint64(8))
                                   .astype(numpy.int64)).reshape(example.shape)
        padding = eighths < torch.arange(len(inputs)).unsqueeze(1)
        padding[:, 0] = False
        inputs = inputs.masked_fill(padding, 0)
    changed = keep_from_steps(network, inputs) if example.is_floating_point() else {}
    single = copy.deepcopy(network)
    results = with_rounding(results_of(network.double(), inputs, in_graph),
                            results_of(single, inputs.float() if example.is_floating_point() else inputs,
                                       in_graph))
    results |= {f"values/{key}": bias for key, bias in changed.items()}
    safetensors.numpy.save_file(results, out / f"{name}.safetensors")
    print(f"{name}: {path.stat().st_size} bytes, {len(results)} tensors, "
          f"loss {results['loss'][0]:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--out", type=pathlib.Path, default=here / "imports")
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or import_models.MODELS:
        make(name, arguments.out)


if __name__ == "__main__":
    main()
