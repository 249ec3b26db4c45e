"""More cases of op_cases.py: layers of recurrent networks and of encoders with decoders."""

import torch
import torch.nn.functional as F

from op_cases import normal, run_forward_and_backward, sequence_model


def take_tokens(token, count):
    return (sequence_model(6, 5, f"take_token {{ token: {token} count: {count} }}"),
            run_forward_and_backward([normal(3, 6, 5)], {}, lambda x: x[:, token:token + count]))


def dot_product_attention():
    """Queries and source are layers of sequences of different lengths."""
    model = ('tokens { length: 9 }\n'
             'layer { name: "embedding" embedding { vocabulary: 5 features: 6 } }\n'
             'layer { name: "queries" take_token { token: 5 count: 4 } }\n'
             'layer { name: "source" input: "embedding" take_token { count: 5 } }\n'
             'layer { name: "op" input: "queries" input: "source" dot_product_attention {} }\n'
             'layer { name: "loss" softmax_cross_entropy {} }\n')
    return model, run_forward_and_backward(
        [normal(3, 4, 6), normal(3, 5, 6)], {},
        lambda x, source: F.scaled_dot_product_attention(x, source, source))


def lstm(tokens, projection=0, reverse=False):
    samples, features, hidden = 3, 5, 7
    module = torch.nn.LSTM(features, hidden, batch_first=True, proj_size=projection,
                           dtype=torch.float64)
    outputs = projection or hidden

    def function(x, input_weight, recurrent_weight, bias, projection_weight=None):
        weights = {
            "weight_ih_l0": input_weight,
            "weight_hh_l0": recurrent_weight,
            # PyTorch adds two biases.
            "bias_ih_l0": 0.25 * bias,
            "bias_hh_l0": 0.75 * bias,
        }
        if projection:
            weights["weight_hr_l0"] = projection_weight
        y = torch.func.functional_call(module, weights, (x.flip(1) if reverse else x,))[0]
        return y.flip(1) if reverse else y

    parameters = {
        "input_weight": normal(4 * hidden, features, stddev=0.5),
        "recurrent_weight": normal(4 * hidden, outputs, stddev=0.5),
        "bias": normal(4 * hidden),
    }
    if projection:
        parameters["projection_weight"] = normal(projection, hidden, stddev=0.5)
    op = (f"lstm {{ hidden: {hidden} projection: {projection} "
          f"reverse: {str(reverse).lower()} }}")
    return (sequence_model(tokens, features, op),
            run_forward_and_backward([normal(samples, tokens, features)], parameters, function))


def cases():
    made = {
        "take_token/range": take_tokens(1, 3),
        "take_token/range_to_end": take_tokens(5, 1),
        "lstm": lstm(6),
        "lstm/reverse": lstm(6, reverse=True),
        "lstm/projection": lstm(6, projection=4),
        "lstm/reverse_projection": lstm(4, projection=2, reverse=True),
        "lstm/one_token": lstm(1, projection=3),
        "dot_product_attention": dot_product_attention(),
    }
    for name, (model, results) in made.items():
        yield f"op/{name}", model, results
