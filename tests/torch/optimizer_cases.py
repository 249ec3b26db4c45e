"""Five updates by each optimizer that PyTorch also has, of a matrix and a bias.

A case is an optimizer in text format, the initial tensors weight/0 and bias/0, and for steps 1 to 5 the
gradients gradients/weight/STEP and gradients/bias/STEP and the updated tensors weight/STEP and
bias/STEP. Only the weight decays, unless the spec sets decay_all.
"""

import torch

from op_cases import normal, number

STEPS = 5
RATE = number(0.1)


def updates(spec, optimizer, decay, clip=0.0, decay_all=False, **settings):
    weight = torch.nn.Parameter(normal(4, 3))
    bias = torch.nn.Parameter(normal(4))
    groups = [{"params": [weight], "weight_decay": decay},
              {"params": [bias], "weight_decay": decay if decay_all else 0}]
    stepper = optimizer(groups, lr=RATE, **settings)
    results = {"weight/0": weight.detach().clone(), "bias/0": bias.detach().clone()}
    for step in range(1, STEPS + 1):
        weight.grad, bias.grad = normal(4, 3), normal(4)
        results[f"gradients/weight/{step}"] = weight.grad.clone()
        results[f"gradients/bias/{step}"] = bias.grad.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_([weight, bias], clip)
        stepper.step()
        results[f"weight/{step}"] = weight.detach().clone()
        results[f"bias/{step}"] = bias.detach().clone()
    return spec, results


def cases():
    momentum, decay, small = number(0.9), number(0.01), number(1e-4)
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    made = {
        "sgd": updates("sgd {}", sgd, 0),
        "sgd/momentum": updates("sgd { momentum: 0.9 weight_decay: 0.01 }", sgd, decay,
                                momentum=momentum),
        "sgd/nesterov": updates("sgd { momentum: 0.9 weight_decay: 0.01 nesterov: true }", sgd,
                                decay, momentum=momentum, nesterov=True),
        "sgd/clip": updates("sgd { momentum: 0.9 } clip_norm: 1.5", sgd, 0, clip=1.5,
                            momentum=momentum),
        "sgd/decay_all": updates("sgd { weight_decay: 0.01 } decay_all: true", sgd, decay,
                                 decay_all=True),
        "adamw": updates("adamw {}", adamw, 0, betas=(momentum, number(0.999))),
        "adamw/settings": updates(
            "adamw { beta1: 0.8 beta2: 0.95 epsilon: 1e-4 weight_decay: 0.01 } clip_norm: 1.5",
            adamw, decay, clip=1.5, betas=(number(0.8), number(0.95)), eps=small),
    }
    for name, (spec, results) in made.items():
        yield f"optimizer/{name}", spec, results
