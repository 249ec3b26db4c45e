"""The models of this folder's run files in PyTorch, and their training on the data of torch_dump.

Modules are named so that Cadre's layer "stage1_1/branch/conv1" is the module stage1_1.conv1.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Lenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 1024)
        self.fc2 = nn.Linear(1024, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Alexnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 24, 11, stride=4)
        self.conv2 = nn.Conv2d(24, 64, 5, padding=2)
        self.conv3 = nn.Conv2d(64, 96, 3, padding=1)
        self.conv4 = nn.Conv2d(96, 96, 3, padding=1)
        self.conv5 = nn.Conv2d(96, 64, 3, padding=1)
        self.fc6 = nn.Linear(64, 256)
        self.fc7 = nn.Linear(256, 256)
        self.fc8 = nn.Linear(256, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 3, 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 3, 2)
        x = F.relu(self.conv4(F.relu(self.conv3(x))))
        x = F.max_pool2d(F.relu(self.conv5(x)), 3, 2).flatten(1)
        return self.fc8(F.relu(self.fc7(F.relu(self.fc6(x)))))


class Residual(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.projected = stride > 1
        if self.projected:
            self.projection = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(branch + (self.norm(self.projection(x)) if self.projected else x))


class Resnet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.stages = []
        inputs = 16
        for stage, width in enumerate((16, 32, 64, 128), start=1):
            for number in (1, 2):
                self.stages.append(f"stage{stage}_{number}")
                stride = 2 if stage > 1 and number == 1 else 1
                self.add_module(self.stages[-1], Residual(inputs, width, stride))
                inputs = width
        self.fc = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        seen = self.norm1(x)
        x = x + self.attention(seen, seen, seen, need_weights=False, attn_mask=mask)[0]
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 64)
        self.positions = nn.Parameter(torch.zeros(32, 64))
        self.block1 = Block(64, 4)
        self.block2 = Block(64, 4)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 64, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions
        return self.head(self.norm(self.block2(self.block1(x))))


class Lstm(nn.LSTM):
    """One direction. Cadre has one bias; PyTorch adds a second one, which stays 0 here."""

    def __init__(self, features, hidden, projection=0, reverse=False):
        super().__init__(features, hidden, batch_first=True, proj_size=projection)
        nn.init.zeros_(self.bias_hh_l0).requires_grad_(False)
        self.reverse = reverse

    def forward(self, x):
        y = super().forward(x.flip(1) if self.reverse else x)[0]
        return y.flip(1) if self.reverse else y


class Gnmt(nn.Module):
    """A sample is SOURCE tokens of the source, then the target."""

    SOURCE = 12

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 48)
        self.norm = nn.LayerNorm(48)
        self.encoder1 = nn.Module()
        self.encoder1.forwards = Lstm(48, 24)
        self.encoder1.backwards = Lstm(48, 24, reverse=True)
        self.encoder2 = Lstm(48, 48)
        self.decoder1 = Lstm(48, 64, projection=48)
        self.query = nn.Linear(48, 48, bias=False)
        self.decoder2 = Lstm(96, 48)
        self.head = nn.Linear(48, 64)

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens))
        source, target = x[:, :self.SOURCE], x[:, self.SOURCE:]
        encoded = torch.cat([self.encoder1.forwards(source), self.encoder1.backwards(source)], 2)
        encoded = encoded + self.encoder2(encoded)
        decoded = self.decoder1(target)
        context = F.scaled_dot_product_attention(self.query(decoded), encoded, encoded)
        return self.head(decoded + self.decoder2(torch.cat([decoded, context], 2)))


MODELS = {"lenet": Lenet, "alexnet": Alexnet, "resnet18": Resnet18, "gpt": Gpt, "gnmt": Gnmt}
LEAVES = {"scale": "weight", "shift": "bias", "mean": "running_mean", "variance": "running_var",
          "qkv_weight": "in_proj_weight", "qkv_bias": "in_proj_bias",
          "out_weight": "out_proj.weight", "out_bias": "out_proj.bias",
          "input_weight": "weight_ih_l0", "recurrent_weight": "weight_hh_l0",
          "projection_weight": "weight_hr_l0"}
SEED = 20
ROUNDED_RUNS = 16
# Cadre decays weights, but not biases or the parameters of norms.
DECAYING = ("weight", "qkv_weight", "out_weight", "positions", "input_weight", "recurrent_weight",
            "projection_weight")


def place(model, name):
    """The tensor of the model with the name `name` in Cadre."""
    layer, leaf = name.replace("/branch", "").rsplit("/", 1)
    if name == "embedding/positions":
        return model.positions
    found = model.get_submodule(layer.replace("/", "."))
    if leaf == "bias" and isinstance(found, nn.LSTM):
        return found.bias_ih_l0
    for part in LEAVES.get(leaf, leaf).split("."):
        found = getattr(found, part)
    return found


def arranged(name, tensor, like):
    """Cadre's tensor in the shape of the model's tensor `like`."""
    if name.rsplit("/", 1)[1].startswith("qkv_"):  # [heads, 3, ...] to [3, heads, ...]
        tensor = tensor.transpose(0, 1)
    return tensor.reshape(like.shape)


def build(dump, dtype, perturbed):
    """The model with the weights of the dump, its tensors by their names in Cadre, and their values."""
    model = MODELS[dump.metadata()["name"]]().to(dtype)
    names = [key.removeprefix("weights/") for key in dump.keys() if key.startswith("weights/")]
    tensors = {name: place(model, name) for name in names}
    given = {id(tensor) for tensor in tensors.values()}
    assert all(id(p) in given for p in model.parameters() if p.requires_grad), \
        "a parameter of the model is missing in the dump"
    initial = {}
    for name, tensor in tensors.items():
        value = arranged(name, dump.get_tensor(f"weights/{name}"), tensor).to(dtype)
        if perturbed:  # by up to eight roundings, like a sum in another order
            value = value * (1 + 2.0 ** -24 * torch.randint(-8, 9, value.shape))
        initial[name] = value
        with torch.no_grad():
            tensor.copy_(value)
    return model, tensors, initial


def sgd(about, tensors):
    trained = {name: t for name, t in tensors.items() if isinstance(t, nn.Parameter)}
    decays = {name: name.rsplit("/", 1)[1] in DECAYING for name in trained}
    return torch.optim.SGD(
        [{"params": [t for n, t in trained.items() if decays[n]],
          "weight_decay": float(about["weight_decay"])},
         {"params": [t for n, t in trained.items() if not decays[n]], "weight_decay": 0.0}],
        lr=float(about["rate"]), momentum=float(about["momentum"]))


def run(dump, dtype, perturbed=False):
    """The loss of each step, and the norm of each parameter's change."""
    about = dump.metadata()
    model, tensors, initial = build(dump, dtype, perturbed)
    optimizer = sgd(about, tensors)
    model.train()
    losses = []
    for step in range(int(about["steps"])):
        inputs = dump.get_tensor(f"batch{step}/inputs")
        labels = dump.get_tensor(f"batch{step}/labels").long()
        x = inputs.long() if inputs.dim() == 2 else inputs.permute(0, 3, 1, 2).to(dtype)
        loss = F.cross_entropy(model(x).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moved = {name: (tensors[name].detach() - initial[name]).norm().item() for name in tensors}
    return torch.tensor(losses, dtype=torch.float64), moved


def train(dump):
    """The tensors of one run in the fixture.

      losses      loss of each step, in float64, that is, without rounding
      rounding    effect of rounding: the largest relative difference of the loss, up to each step, in
                  float32 runs, all but the first of which have perturbed weights
      moved/NAME  norm of a parameter's change in all steps, in float64, and the effect of rounding
    """
    torch.manual_seed(SEED)
    losses, moved = run(dump, torch.float64)
    rounding, moved_rounding = torch.zeros_like(losses), dict.fromkeys(moved, 0.0)
    for i in range(ROUNDED_RUNS):
        rounded, rounded_moved = run(dump, torch.float32, perturbed=i > 0)
        rounding = torch.maximum(rounding, (rounded / losses - 1).abs())
        for name, exact in moved.items():
            moved_rounding[name] = max(moved_rounding[name], abs(rounded_moved[name] / exact - 1))
    rounding = rounding.cummax(0).values
    print(f"{dump.metadata()['name']}: loss {losses[0]:.6f} to {losses[-1]:.6f}; rounding after 1, "
          f"10, 25 and all steps: {rounding[0]:.1e} {rounding[9]:.1e} {rounding[24]:.1e} "
          f"{rounding[-1]:.1e}; of changes: up to {max(moved_rounding.values()):.1e}")
    return {"losses": losses, "rounding": rounding,
            **{f"moved/{name}": torch.tensor([exact, moved_rounding[name]])
               for name, exact in moved.items()}}
