"""The networks of model/zoo, GPT-2-small, and one attention, in PyTorch, and their training steps: what the benchmarks
compare Cadre with.

Layers, initial ranges and outputs are those of the run files; the benchmarks report the number of parameters, so
that a difference shows.
"""
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 1024), nn.ReLU(), nn.Linear(1024, 10))


def alexnet():
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 1000))


def _vgg(convolutions):
    layers, channels = [], 3
    for width, times in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        for _ in range(times):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(),
                         nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def vgg11():
    return _vgg((1, 1, 2, 2, 2))


def vgg16():
    return _vgg((2, 2, 3, 3, 3))


class _Residual(nn.Module):
    """The ReLU of the sum of a branch and the input, which is projected if the shapes differ."""

    def __init__(self, branch, channels, width, stride):
        super().__init__()
        self.branch = branch
        self.projection = nn.Identity()
        if channels != width:
            self.projection = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False),
                                            nn.BatchNorm2d(width))
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.branch(x) + self.projection(x))


def _basic(channels, width, stride):
    branch = nn.Sequential(
        nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
    return _Residual(branch, channels, width, stride)


def _bottleneck(channels, width, stride):
    branch = nn.Sequential(
        nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
    return _Residual(branch, channels, 4 * width, stride)


def _resnet(block, blocks, expansion):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, times, stride in zip((64, 128, 256, 512), blocks, (1, 2, 2, 2), strict=True):
        for index in range(times):
            layers.append(block(channels, width, stride if index == 0 else 1))
            channels = expansion * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, 1000))


def resnet18():
    return _resnet(_basic, (2, 2, 2, 2), 1)


def resnet50():
    return _resnet(_bottleneck, (3, 4, 6, 3), 4)


def _unit(channels, width, kernel, stride=1, padded=True):
    """Convolution, batch norm and ReLU; kernel: a size, or (height, width)."""
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    padding = tuple((side - 1) // 2 for side in sides) if padded else 0
    return nn.Sequential(nn.Conv2d(channels, width, sides, stride, padding, bias=False),
                         nn.BatchNorm2d(width, eps=1e-3), nn.ReLU())


def _units(channels, *shapes):
    """A sequence of units; shapes: (width, kernel)."""
    layers = []
    for width, kernel in shapes:
        layers.append(_unit(channels, width, kernel))
        channels = width
    return nn.Sequential(*layers)


class _Parallel(nn.Module):
    """The outputs of several branches, concatenated along the channels."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(channels, width):
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(channels, width, 1))


def _half(channels, width):
    return _unit(channels, width, 3, stride=2, padded=False)


def _inception_a(channels, pooled):
    return _Parallel(_unit(channels, 64, 1), _units(channels, (48, 1), (64, 5)),
                     _units(channels, (64, 1), (96, 3), (96, 3)), _pooled(channels, pooled))


def _inception_b(channels):
    return _Parallel(_half(channels, 384),
                     nn.Sequential(_units(channels, (64, 1), (96, 3)), _half(96, 96)),
                     nn.MaxPool2d(3, 2))


def _inception_c(channels, narrow):
    row, column = (1, 7), (7, 1)
    return _Parallel(_unit(channels, 192, 1),
                     _units(channels, (narrow, 1), (narrow, row), (192, column)),
                     _units(channels, (narrow, 1), (narrow, column), (narrow, row),
                            (narrow, column), (192, row)),
                     _pooled(channels, 192))


def _inception_d(channels):
    return _Parallel(nn.Sequential(_unit(channels, 192, 1), _half(192, 320)),
                     nn.Sequential(_units(channels, (192, 1), (192, (1, 7)), (192, (7, 1))),
                                   _half(192, 192)),
                     nn.MaxPool2d(3, 2))


def _inception_e(channels):
    def fork(width):
        return _Parallel(_unit(width, 384, (1, 3)), _unit(width, 384, (3, 1)))

    return _Parallel(_unit(channels, 320, 1),
                     nn.Sequential(_unit(channels, 384, 1), fork(384)),
                     nn.Sequential(_units(channels, (448, 1), (384, 3)), fork(384)),
                     _pooled(channels, 192))


def inception_v3():
    return nn.Sequential(
        _half(3, 32), _unit(32, 32, 3, padded=False), _unit(32, 64, 3), nn.MaxPool2d(3, 2),
        _unit(64, 80, 1), _unit(80, 192, 3, padded=False), nn.MaxPool2d(3, 2),
        _inception_a(192, 32), _inception_a(256, 64), _inception_a(288, 64),
        _inception_b(288), _inception_c(768, 128), _inception_c(768, 160),
        _inception_c(768, 160), _inception_c(768, 192), _inception_d(768),
        _inception_e(1280), _inception_e(2048),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(2048, 1000))


class _Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, self.heads, 3, -1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width)) + x
        return self.fc2(functional.gelu(self.fc1(self.norm2(x)))) + x


class _Gpt(nn.Module):
    def __init__(self, width, heads, blocks, length, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.recomputes = False

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[:tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def gpt():
    return _Gpt(width=384, heads=6, blocks=6, length=128, vocabulary=256)


def gpt2_small():
    """The sizes of Radford et al. 2019, with a head of its own instead of the tied embedding."""
    return _Gpt(width=768, heads=12, blocks=12, length=1024, vocabulary=50257)


class _Attention(nn.Module):
    """The network of attention-4096.textproto, with a matrix of scores of all pairs of tokens in memory."""

    def __init__(self, width, heads, length, vocabulary):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, tokens):
        x = self.norm(self.tokens(tokens))
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, self.heads, 3, -1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
        scores = (q @ k.transpose(2, 3)) * (width // self.heads) ** -0.5
        mixed = scores.masked_fill(self.later, -torch.inf).softmax(-1) @ v
        return self.head(self.out(mixed.transpose(1, 2).reshape(batch, length, width))).flatten(0, 1)


def attention_4096():
    return _Attention(width=512, heads=8, length=4096, vocabulary=64)


MODELS = {"lenet": lenet, "alexnet": alexnet, "vgg11": vgg11, "vgg16": vgg16, "resnet18": resnet18,
          "resnet50": resnet50, "inception-v3": inception_v3, "gpt": gpt,
          "gpt2-small": gpt2_small, "attention-4096": attention_4096}
# Tokens of a sample and the size of the vocabulary.
TEXTS = {"gpt": (128, 256), "gpt2-small": (1024, 50257), "attention-4096": (4096, 64)}
# Channels and side of an image, and classes; IMAGE for the others.
IMAGES = {"lenet": (1, 28, 10), "alexnet": (3, 227, 1000), "inception-v3": (3, 299, 1000)}
IMAGE = (3, 224, 1000)


def random_batch(model, batch):
    """Inputs and labels of one step."""
    if model in TEXTS:
        length, vocabulary = TEXTS[model]
        return (torch.randint(vocabulary, (batch, length)),
                torch.randint(vocabulary, (batch * length,)))
    channels, side, classes = IMAGES.get(model, IMAGE)
    return torch.rand(batch, channels, side, side), torch.randint(classes, (batch,))


class TorchSteps:
    """Training steps of one network on one batch, by SGD with momentum."""

    def __init__(self, model, batch, precision, mode, device="cpu", layout="channels-last", optimizer="fused",
                 fullgraph=False, recompute=False):
        """`mode`: "eager", "compile", or a mode of torch.compile. `fullgraph`: what cannot be compiled is an error.
        `recompute`: the activations of the blocks of a transformer, by torch.utils.checkpoint."""
        torch.manual_seed(1)
        self.device, self.bf16 = device, precision == "bf16"
        net = MODELS[model]().to(device)
        if recompute:
            if not isinstance(net, _Gpt):
                raise ValueError(f"{model} has no blocks that can be recomputed")
            net.recomputes = True
        inputs, labels = random_batch(model, batch)
        if layout == "channels-last" and inputs.dim() == 4:
            net = net.to(memory_format=torch.channels_last)
            inputs = inputs.to(memory_format=torch.channels_last)
        if device == "cuda":
            # In pinned host memory, as a data loader would leave them.
            inputs, labels = inputs.pin_memory(), labels.pin_memory()
        self.inputs, self.labels = inputs, labels
        self.parameters = sum(p.numel() for p in net.parameters())
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9, **{optimizer: True})
        criterion = nn.CrossEntropyLoss()

        def loss_of(x, y):
            return criterion(net(x), y)

        # The loss is compiled, too, so that it is fused with the last layer.
        self.loss_of = loss_of if mode == "eager" else torch.compile(
            loss_of, mode=None if mode == "compile" else mode, fullgraph=fullgraph)

    def step(self):
        # Tensors of the step before may be overwritten, if a graph is replayed.
        torch.compiler.cudagraph_mark_step_begin()
        x = self.inputs.to(self.device, non_blocking=True)
        y = self.labels.to(self.device, non_blocking=True)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = self.loss_of(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()
