"""Single operations of proto/cadre/v1/run.proto, forward and backward, in PyTorch.

A case has a model in text format, whose layer "op" is the operation, and these tensors:

  x0, x1, ...          its inputs
  parameters/NAME      its parameters (batch norm: running statistics too)
  y, dy                its output in training, and a gradient of it
  dx0, dx1, ...        the inputs' gradients
  gradients/NAME       the parameters'
  after/NAME           running statistics after a step
  evaluation/y         its output in evaluation, if it differs

The case of the loss also has `labels`, has no dy, and its y is the mean loss over all labels.

Inputs are float32 numbers; everything else is computed from them in float64.
"""

import torch
import torch.nn.functional as F


def number(value):
    """Rounds to float32, like a field of a run file."""
    return float(torch.tensor(value, dtype=torch.float32))


def normal(*shape, mean=0.0, stddev=1.0):
    return (mean + stddev * torch.randn(*shape, dtype=torch.float32)).double()


def uniform(low, high, *shape):
    return (low + (high - low) * torch.rand(*shape, dtype=torch.float32)).double()


def channels_first(x):
    """From Cadre's order, channels last, to PyTorch's."""
    return x.permute(0, 3, 1, 2)


def channels_last(y):
    """From PyTorch's order to Cadre's."""
    return y.permute(0, 2, 3, 1)


def image_model(channels, height, width, op, inputs=1, flatten=True):
    """`op` with `inputs` images as inputs.

    A convolution before each makes Cadre compute the gradient of that input.
    """
    names = [f"before{i}" for i in range(inputs)]
    before = "".join(
        f'layer {{ name: "{name}" input: "input" '
        f'convolution {{ out_channels: {channels} kernel: 1 }} }}\n'
        for name in names)
    takes = " ".join(f'input: "{name}"' for name in names)
    return (f"input {{ channels: {channels} height: {height} width: {width} }}\n{before}"
            f'layer {{ name: "op" {takes} {op} }}\n'
            + ('layer { name: "flatten" flatten {} }\n' if flatten else "")
            + 'layer { name: "loss" softmax_cross_entropy {} }\n')


def feature_model(features, op):
    return (f"input {{ channels: 1 height: 1 width: 3 }}\n"
            f'layer {{ name: "before" fully_connected {{ out_features: {features} }} }}\n'
            f'layer {{ name: "op" {op} }}\nlayer {{ name: "loss" softmax_cross_entropy {{}} }}\n')


def sequence_model(tokens, features, op, inputs=1):
    names = [f"before{i}" for i in range(inputs)]
    before = "".join(f'layer {{ name: "{name}" input: "embedding" layer_norm {{}} }}\n'
                     for name in names)
    takes = " ".join(f'input: "{name}"' for name in names)
    return (f"tokens {{ length: {tokens} }}\n"
            f'layer {{ name: "embedding" embedding {{ vocabulary: 5 features: {features} }} }}\n'
            f'{before}layer {{ name: "op" {takes} {op} }}\n'
            'layer { name: "loss" softmax_cross_entropy {} }\n')


def run_forward_and_backward(inputs, parameters, function):
    """Runs `function` forward, then backward from a random gradient of its output."""
    inputs = [x.clone().requires_grad_(True) for x in inputs]
    parameters = {name: p.clone().requires_grad_(True) for name, p in parameters.items()}
    y = function(*inputs, **parameters)
    dy = normal(*y.shape)
    y.backward(dy)
    results = {"y": y, "dy": dy}
    for i, x in enumerate(inputs):
        results |= {f"x{i}": x, f"dx{i}": x.grad}
    for name, p in parameters.items():
        results |= {f"parameters/{name}": p, f"gradients/{name}": p.grad}
    return results


# --- windows --------------------------------------------------------------------------------------

def convolution(samples, height, width, inputs, outputs, kernel, stride=1, padding=(0, 0),
                dilation=1, groups=1, bias=True):
    op = (f"convolution {{ out_channels: {outputs} kernel_height: {kernel[0]} "
          f"kernel_width: {kernel[1]} stride: {stride} padding_height: {padding[0]} "
          f"padding_width: {padding[1]} dilation: {dilation} groups: {groups} "
          f"no_bias: {str(not bias).lower()} }}")
    parameters = {"weight": normal(outputs, inputs // groups, *kernel)}
    if bias:
        parameters["bias"] = normal(outputs)

    def function(x, weight, bias=None):
        return channels_last(
            F.conv2d(channels_first(x), weight, bias, stride, padding, dilation, groups))

    return (image_model(inputs, height, width, op),
            run_forward_and_backward([normal(samples, height, width, inputs)], parameters,
                                     function))


def max_pool(kernel, stride, padding):
    op = f"max_pool {{ kernel: {kernel} stride: {stride} padding: {padding} }}"
    return (image_model(3, 9, 8, op),
            run_forward_and_backward(
                [normal(2, 9, 8, 3)], {},
                lambda x: channels_last(
                    F.max_pool2d(channels_first(x), kernel, stride, padding))))


def average_pool(kernel, stride, padding, count_padding):
    op = (f"average_pool {{ kernel: {kernel} stride: {stride} padding: {padding} "
          f"count_padding: {str(count_padding).lower()} }}")
    return (image_model(3, 9, 8, op),
            run_forward_and_backward(
                [normal(2, 9, 8, 3)], {},
                lambda x: channels_last(
                    F.avg_pool2d(channels_first(x), kernel, stride, padding,
                                 count_include_pad=count_padding))))


def global_average_pool():
    return (image_model(5, 4, 7, "global_average_pool {}", flatten=False),
            run_forward_and_backward(
                [normal(3, 4, 7, 5)], {},
                lambda x: F.adaptive_avg_pool2d(channels_first(x), 1).flatten(1)))


# --- products -------------------------------------------------------------------------------------

def fully_connected(bias):
    op = f"fully_connected {{ out_features: 6 no_bias: {str(not bias).lower()} }}"
    parameters = {"weight": normal(6, 9)} | ({"bias": normal(6)} if bias else {})
    return feature_model(9, op), run_forward_and_backward([normal(5, 9)], parameters, F.linear)


def fully_connected_of_tokens():
    op = "fully_connected { out_features: 7 }"
    return (sequence_model(4, 6, op),
            run_forward_and_backward([normal(3, 4, 6)],
                                     {"weight": normal(7, 6), "bias": normal(7)}, F.linear))


def embedding(positions):
    op = f"embedding {{ vocabulary: 11 features: 6 positions: {str(positions).lower()} }}"
    tokens = torch.randint(0, 11, (3, 5))
    parameters = {"weight": normal(11, 6)} | ({"positions": normal(5, 6)} if positions else {})

    def function(weight, positions=None):
        y = F.embedding(tokens, weight)
        return y if positions is None else y + positions

    model = (f'tokens {{ length: 5 }}\nlayer {{ name: "op" {op} }}\n'
             'layer { name: "loss" softmax_cross_entropy {} }\n')
    return model, {"x0": tokens} | run_forward_and_backward([], parameters, function)


def attention(heads, causal):
    samples, tokens, features = 2, 7, 12
    size = features // heads
    module = torch.nn.MultiheadAttention(features, heads, batch_first=True, dtype=torch.float64)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens, dtype=torch.float64)

    def function(x, qkv_weight, qkv_bias, out_weight, out_bias):
        weights = {
            "in_proj_weight": qkv_weight.transpose(0, 1).reshape(3 * features, features),
            "in_proj_bias": qkv_bias.transpose(0, 1).reshape(3 * features),
            "out_proj.weight": out_weight.reshape(features, features),
            "out_proj.bias": out_bias,
        }
        return torch.func.functional_call(
            module, weights, (x, x, x),
            {"need_weights": False, "attn_mask": mask if causal else None})[0]

    parameters = {
        "qkv_weight": normal(heads, 3, size, features, stddev=0.5),
        "qkv_bias": normal(heads, 3, size),
        "out_weight": normal(features, heads, size, stddev=0.5),
        "out_bias": normal(features),
    }
    op = f"attention {{ heads: {heads} causal: {str(causal).lower()} }}"
    return (sequence_model(tokens, features, op),
            run_forward_and_backward([normal(samples, tokens, features)], parameters, function))


# --- element-wise, joins --------------------------------------------------------------------

def activation(name, function, settings=""):
    return (image_model(3, 4, 5, f"{name} {{{settings}}}"),
            run_forward_and_backward([normal(2, 4, 5, 3, stddev=3)], {}, function))


def activation_of_tokens(name, function):
    return (sequence_model(4, 6, f"{name} {{}}"),
            run_forward_and_backward([normal(2, 4, 6, stddev=3)], {}, function))


def dropout():
    """Only in evaluation, because random numbers differ in training."""
    x = normal(2, 4, 5, 3)
    return (image_model(3, 4, 5, "dropout { rate: 0.25 }"),
            {"x0": x, "evaluation/y": F.dropout(x, 0.25, training=False)})


def add(inputs):
    return (image_model(3, 4, 5, "add {}", inputs),
            run_forward_and_backward([normal(2, 4, 5, 3) for _ in range(inputs)], {},
                                     lambda *x: sum(x)))


def multiply():
    return (sequence_model(4, 6, "multiply {}", 2),
            run_forward_and_backward([normal(2, 4, 6) for _ in range(2)], {},
                                     lambda x, factor: x * factor))


def multiply_channels():
    """The factor is one number per channel, as in squeeze-and-excitation."""
    model = ('input { channels: 3 height: 4 width: 5 }\n'
             'layer { name: "before" convolution { out_channels: 3 kernel: 1 } }\n'
             'layer { name: "factor" global_average_pool {} }\n'
             'layer { name: "op" input: "before" input: "factor" multiply {} }\n'
             'layer { name: "flatten" flatten {} }\n'
             'layer { name: "loss" softmax_cross_entropy {} }\n')
    return model, run_forward_and_backward([normal(2, 4, 5, 3), normal(2, 3)], {},
                                           lambda x, factor: x * factor[:, None, None, :])


def concat():
    return (image_model(3, 4, 5, "concat {}", 3),
            run_forward_and_backward(
                [normal(2, 4, 5, 3) for _ in range(3)], {},
                lambda *x: channels_last(torch.cat([channels_first(one) for one in x], dim=1))))


def concat_of_tokens():
    return (sequence_model(4, 6, "concat {}", 2),
            run_forward_and_backward([normal(2, 4, 6) for _ in range(2)], {},
                                     lambda *x: torch.cat(x, dim=2)))


def flatten():
    return (image_model(3, 4, 5, "flatten {}", flatten=False),
            run_forward_and_backward([normal(2, 4, 5, 3)], {},
                                     lambda x: torch.flatten(channels_first(x), 1)))


# --- tokens -------------------------------------------------------------------------------------

def to_tokens():
    model = image_model(3, 4, 5, "to_tokens {}", flatten=False)
    return model, run_forward_and_backward(
        [normal(2, 4, 5, 3)], {}, lambda x: channels_first(x).flatten(2).transpose(1, 2))


def class_token():
    return (sequence_model(4, 6, "class_token {}"),
            run_forward_and_backward(
                [normal(3, 4, 6)], {"weight": normal(6)},
                lambda x, weight: torch.cat([weight.expand(3, 1, 6), x], dim=1)))


def take_token(token):
    return (sequence_model(4, 6, f"take_token {{ token: {token} }}"),
            run_forward_and_backward([normal(3, 4, 6)], {}, lambda x: x[:, token]))


def bias(per_token):
    parameters = {"bias": normal(4, 6) if per_token else normal(6)}
    return (sequence_model(4, 6, f"bias {{ per_token: {str(per_token).lower()} }}"),
            run_forward_and_backward([normal(3, 4, 6)], parameters, lambda x, bias: x + bias))


def bias_of_features():
    return (feature_model(9, "bias {}"),
            run_forward_and_backward([normal(5, 9)], {"bias": normal(9)},
                                     lambda x, bias: x + bias))


# --- norms ----------------------------------------------------------------------------------------

def batch_norm(epsilon, momentum):
    settings = f"epsilon: {epsilon} momentum: {momentum}" if epsilon else ""
    epsilon, momentum = number(epsilon or 1e-5), number(momentum or 0.1)
    mean, variance = normal(3), uniform(0.5, 2, 3)
    running = {"mean": mean.clone(), "variance": variance.clone()}

    def function(x, scale, shift):
        return channels_last(
            F.batch_norm(channels_first(x), running["mean"], running["variance"], scale, shift,
                         True, momentum, epsilon))

    results = run_forward_and_backward([normal(4, 5, 3, 3, mean=1, stddev=2)],
                                       {"scale": normal(3), "shift": normal(3)}, function)
    in_evaluation = channels_last(
        F.batch_norm(channels_first(results["x0"]), mean, variance, results["parameters/scale"],
                     results["parameters/shift"], False, momentum, epsilon))
    return (image_model(3, 5, 3, f"batch_norm {{ {settings} }}"),
            results | {"parameters/mean": mean, "parameters/variance": variance,
                       "after/mean": running["mean"], "after/variance": running["variance"],
                       "evaluation/y": in_evaluation})


def local_response_norm(size, alpha, beta, k):
    op = (f"local_response_norm {{ size: {size} alpha: {alpha} beta: {beta} k: {k} }}")
    return (image_model(8, 3, 4, op),
            run_forward_and_backward(
                [normal(2, 3, 4, 8, stddev=2)], {},
                lambda x: channels_last(
                    F.local_response_norm(channels_first(x), size, number(alpha), number(beta),
                                          number(k)))))


def layer_norm(epsilon):
    settings = f"epsilon: {epsilon}" if epsilon else ""
    epsilon = number(epsilon or 1e-5)
    return (sequence_model(4, 6, f"layer_norm {{ {settings} }}"),
            run_forward_and_backward(
                [normal(3, 4, 6, mean=1, stddev=2)], {"scale": normal(6), "shift": normal(6)},
                lambda x, scale, shift: F.layer_norm(x, (6,), scale, shift, epsilon)))


# --- loss -----------------------------------------------------------------------------------------

def loss(shape, smoothing):
    """`shape`: [samples, classes] or [samples, tokens, classes]."""
    x = normal(*shape, stddev=3).requires_grad_(True)
    labels = torch.randint(0, shape[-1], shape[:-1])
    y = F.cross_entropy(x.flatten(0, -2), labels.flatten(), label_smoothing=number(smoothing))
    y.backward()
    settings = f"softmax_cross_entropy {{ label_smoothing: {smoothing} }}"
    before = (f"tokens {{ length: {shape[1]} }}\n"
              'layer { name: "embedding" embedding { vocabulary: 5 features: 4 } }\n'
              if len(shape) == 3 else "input { channels: 1 height: 1 width: 3 }\n")
    model = (f'{before}layer {{ name: "before" fully_connected {{ out_features: {shape[-1]} }} }}\n'
             f'layer {{ name: "op" {settings} }}\n')
    return model, {"x0": x, "labels": labels, "y": y.reshape(1), "dx0": x.grad}


def image_cases():
    return {
        "convolution": convolution(2, 7, 6, 3, 5, (3, 3), padding=(1, 1)),
        "convolution/stride": convolution(2, 11, 10, 3, 4, (5, 5), stride=4),
        "convolution/stride_with_padding": convolution(2, 9, 8, 4, 6, (3, 3), 2, (1, 1)),
        "convolution/pointwise": convolution(3, 5, 4, 8, 6, (1, 1), bias=False),
        "convolution/pointwise_stride": convolution(2, 6, 5, 4, 6, (1, 1), 2, bias=False),
        "convolution/groups": convolution(2, 6, 7, 6, 4, (3, 3), padding=(1, 1), groups=2),
        "convolution/depthwise": convolution(2, 6, 7, 6, 6, (3, 3), 2, (1, 1), groups=6),
        "convolution/dilation": convolution(2, 9, 8, 3, 4, (3, 3), padding=(2, 2), dilation=2),
        "convolution/dilation_and_stride": convolution(2, 11, 9, 4, 4, (3, 3), 2, (1, 2), 2, 2),
        "convolution/one_by_seven": convolution(2, 4, 9, 3, 5, (1, 7), padding=(0, 3)),
        "convolution/seven_by_one": convolution(2, 9, 4, 3, 5, (7, 1), padding=(3, 0), bias=False),
        "max_pool": max_pool(2, 2, 0),
        "max_pool/overlapping": max_pool(3, 2, 1),
        "max_pool/gaps": max_pool(2, 3, 0),
        "average_pool": average_pool(2, 2, 0, False),
        "average_pool/without_padding": average_pool(3, 2, 1, False),
        "average_pool/with_padding": average_pool(3, 2, 1, True),
        "average_pool/dense": average_pool(3, 1, 1, False),
        "global_average_pool": global_average_pool(),
    }


def other_cases():
    return {
        "fully_connected": fully_connected(True),
        "fully_connected/no_bias": fully_connected(False),
        "fully_connected/tokens": fully_connected_of_tokens(),
        "relu": activation("relu", F.relu),
        "gelu": activation("gelu", F.gelu),
        "gelu/tokens": activation_of_tokens("gelu", F.gelu),
        "sigmoid": activation("sigmoid", torch.sigmoid),
        "tanh": activation("tanh", torch.tanh),
        "dropout": dropout(),
        "batch_norm": batch_norm(None, None),
        "batch_norm/settings": batch_norm(0.01, 0.3),
        "local_response_norm": local_response_norm(5, 0.3, 0.75, 2),
        "local_response_norm/even": local_response_norm(4, 0.5, 0.6, 1),
        "local_response_norm/wide": local_response_norm(11, 0.5, 0.75, 1.5),
        "add": add(2),
        "add/three": add(3),
        "concat": concat(),
        "concat/tokens": concat_of_tokens(),
        "flatten": flatten(),
        "embedding": embedding(False),
        "embedding/positions": embedding(True),
        "layer_norm": layer_norm(None),
        "layer_norm/epsilon": layer_norm(0.1),
        "attention": attention(3, False),
        "attention/causal": attention(4, True),
        "attention/one_head": attention(1, True),
        "softmax_cross_entropy": loss((6, 5), 0),
        "softmax_cross_entropy/smoothing": loss((6, 5), 0.1),
        "softmax_cross_entropy/tokens": loss((3, 4, 7), 0),
        "softmax_cross_entropy/tokens_smoothing": loss((3, 4, 7), 0.2),
        "gelu/approximate": activation("gelu", lambda x: F.gelu(x, approximate="tanh"),
                                       "approximate: true"),
        "relu6": activation("relu6", F.relu6),
        "hard_swish": activation("hard_swish", F.hardswish),
        "hard_sigmoid": activation("hard_sigmoid", F.hardsigmoid),
        "silu": activation("silu", F.silu),
        "multiply": multiply(),
        "multiply/channels": multiply_channels(),
        "to_tokens": to_tokens(),
        "class_token": class_token(),
        "take_token": take_token(0),
        "take_token/last": take_token(3),
        "bias": bias(False),
        "bias/per_token": bias(True),
        "bias/features": bias_of_features(),
    }


def cases():
    """Name, spec and tensors of each."""
    for name, (model, results) in (image_cases() | other_cases()).items():
        yield f"op/{name}", model, results
