"""Networks as people write them in PyTorch, with small widths, for tests of `cadre import`.

The structure of each is that of the network whose name it has (He et al. 2016, Simonyan and Zisserman
2015, Krizhevsky 2014, Huang et al. 2017, Sandler et al. 2018, Howard et al. 2019, Dosovitskiy et al.
2021, Radford et al. 2019, Devlin et al. 2019, Iandola et al. 2016, Shi et al. 2017, Vaswani et al.
2017). Dropout is left out, because it draws random numbers.
"""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 10


# --- convolutional networks -----------------------------------------------------------------------

def convolution_and_norm(inputs, outputs, kernel, stride=1, groups=1, activation=nn.ReLU):
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
              nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, or with `bottleneck` 1x1, 3x3 and 1x1 with four times the width."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)] if bottleneck \
            else [(inputs, width, 3, stride), (width, width, 3, 1)]
        for i, (before, after, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(after))
        self.last = len(sizes)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = convolution_and_norm(inputs, outputs, 1, stride, activation=None)

    def forward(self, x):
        y = x
        for i in range(1, self.last + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.last:
                y = F.relu(y)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs, stages = width, []
        for stage, count in enumerate(blocks):
            made = []
            for number in range(count):
                made.append(ResidualBlock(inputs, width << stage,
                                          2 if stage > 0 and number == 0 else 1, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)
            stages.append(nn.Sequential(*made))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Vgg11(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        layers, inputs = [], 3
        for outputs in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
            if outputs == 0:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(inputs, outputs * width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs * width
        self.features = nn.Sequential(*layers)
        side = size // 32
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(nn.Linear(inputs * side * side, 64), nn.ReLU(True),
                                        nn.Linear(64, 64), nn.ReLU(True), nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class AlexNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 2 * width, 11, 4, 2), nn.ReLU(True), nn.MaxPool2d(3, 2),
            nn.Conv2d(2 * width, 6 * width, 5, padding=2), nn.ReLU(True), nn.MaxPool2d(3, 2),
            nn.Conv2d(6 * width, 12 * width, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(12 * width, 8 * width, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(8 * width, 8 * width, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(3, 2))
        self.classifier = nn.Sequential(nn.Linear(8 * width, 64), nn.ReLU(True),
                                        nn.Linear(64, 64), nn.ReLU(True), nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Fire(nn.Module):
    def __init__(self, inputs, squeezed, expanded):
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """Version 1.1, whose pooling rounds up."""

    def __init__(self, width):
        super().__init__()
        pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.features = nn.Sequential(
            nn.Conv2d(3, 4 * width, 3, 2), nn.ReLU(), pool,
            Fire(4 * width, width, 4 * width), Fire(8 * width, width, 4 * width), pool,
            Fire(8 * width, 2 * width, 8 * width), Fire(16 * width, 2 * width, 8 * width), pool,
            Fire(16 * width, 3 * width, 12 * width), Fire(24 * width, 4 * width, 16 * width))
        self.classifier = nn.Sequential(nn.Conv2d(32 * width, CLASSES, 1), nn.ReLU(),
                                        nn.AdaptiveAvgPool2d(1))

    def forward(self, x):
        return self.classifier(self.features(x)).flatten(1)


class Crnn(nn.Module):
    """The convolutions of a network that reads text, whose pooling keeps the width, and a classifier."""

    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            convolution_and_norm(2 * width, 4 * width, 3), nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            convolution_and_norm(4 * width, 8 * width, 3),
            nn.AvgPool2d((3, 2), (2, 1), (0, 1), count_include_pad=False))
        self.classifier = nn.Linear(8 * width * 9, CLASSES)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        y = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(F.relu(self.norm2(y)))


class DenseNet(nn.Module):
    def __init__(self, blocks, growth):
        super().__init__()
        channels = 2 * growth
        self.conv0 = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        self.norm0 = nn.BatchNorm2d(channels)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for number, count in enumerate(blocks):
            self.blocks.append(nn.ModuleList(DenseLayer(channels + i * growth, growth)
                                             for i in range(count)))
            channels += count * growth
            if number + 1 < len(blocks):
                self.transitions.append(nn.Sequential(
                    nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2, 2)))
                channels //= 2
        self.norm5 = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm0(self.conv0(x))), 3, 2, 1)
        for number, block in enumerate(self.blocks):
            features = [x]
            for layer in block:
                features.append(layer(features))
            x = torch.cat(features, 1)
            if number < len(self.transitions):
                x = self.transitions[number](x)
        x = F.adaptive_avg_pool2d(F.relu(self.norm5(x)), 1)
        return self.classifier(torch.flatten(x, 1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, expanded, kernel=3, stride=1, activation=nn.ReLU6,
                 squeeze=False):
        super().__init__()
        layers = []
        if expanded != inputs:
            layers.append(convolution_and_norm(inputs, expanded, 1, activation=activation))
        layers.append(convolution_and_norm(expanded, expanded, kernel, stride, expanded, activation))
        if squeeze:
            layers.append(SqueezeExcitation(expanded, max(2, expanded // 4)))
        layers.append(convolution_and_norm(expanded, outputs, 1, activation=None))
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x))))) * x


class MobileNetV2(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = [convolution_and_norm(3, 4 * width, 3, 2, activation=nn.ReLU6)]
        inputs = 4 * width
        for expand, outputs, count, stride in ((1, 2, 1, 1), (6, 3, 2, 2), (6, 4, 3, 2), (6, 8, 4, 2),
                                               (6, 12, 3, 1), (6, 20, 3, 2), (6, 40, 1, 1)):
            for number in range(count):
                layers.append(InvertedResidual(inputs, outputs * width, inputs * expand,
                                               stride=stride if number == 0 else 1))
                inputs = outputs * width
        layers.append(convolution_and_norm(inputs, 80 * width, 1, activation=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(80 * width, CLASSES))

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class MobileNetV3(nn.Module):
    def __init__(self, width):
        super().__init__()
        relu, swish = nn.ReLU, nn.Hardswish
        layers = [convolution_and_norm(3, 4 * width, 3, 2, activation=swish)]
        inputs = 4 * width
        for kernel, expanded, outputs, squeeze, activation, stride in (
                (3, 4, 4, True, relu, 2), (3, 18, 6, False, relu, 2), (3, 22, 6, False, relu, 1),
                (5, 24, 10, True, swish, 2), (5, 60, 10, True, swish, 1), (5, 30, 12, True, swish, 1),
                (5, 72, 24, True, swish, 2), (5, 144, 24, True, swish, 1)):
            layers.append(InvertedResidual(inputs, outputs * width, expanded * width, kernel, stride,
                                           activation, squeeze))
            inputs = outputs * width
        layers.append(convolution_and_norm(inputs, 6 * inputs, 1, activation=swish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(6 * inputs, 64), nn.Hardswish(inplace=True),
                                        nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


# --- transformers ---------------------------------------------------------------------------------

class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    def __init__(self, size, patch, width, heads, blocks):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(blocks)))
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        x = self.conv_proj(x)
        x = x.reshape(n, x.shape[1], -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=97, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0,
                        embd_pdrop=0, attn_pdrop=0, use_cache=False, attn_implementation="eager")

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = GPT2LMHeadModel(config)

        def forward(self, tokens):
            return self.model(tokens).logits

    return Logits()


def bert(mask_input=False):
    from transformers import BertConfig, BertForSequenceClassification
    config = BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=0,
                        attention_probs_dropout_prob=0, num_labels=CLASSES,
                        attn_implementation="eager")

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = BertForSequenceClassification(config)

        def forward(self, tokens, attention_mask=None):
            return self.model(tokens, attention_mask=attention_mask).logits

    network = Logits()
    network.mask_input = mask_input
    return network


class TokenEncoder(nn.Module):
    """Classifies by the first token, with a mask that is computed from the tokens."""

    def __init__(self, vocabulary, length, width, heads, blocks):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0, activation="gelu",
                                           batch_first=True)
        self.encoder = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions
        return self.head(self.encoder(x, src_key_padding_mask=tokens == 0)[:, 0])


def images(size, channels=3):
    return lambda n: torch.randn(n, channels, size, size)


def tokens(length, vocabulary):
    return lambda n: torch.randint(0, vocabulary, (n, length))


# Name: the network, and a function that makes a batch of inputs.
MODELS = {
    "resnet18": (lambda: ResNet((2, 2, 2, 2), False, 8), images(64)),
    "resnet50": (lambda: ResNet((3, 4, 6, 3), True, 4), images(64)),
    "vgg11": (lambda: Vgg11(4, 64), images(64)),
    "alexnet": (lambda: AlexNet(8), images(63)),
    "squeezenet1_1": (lambda: SqueezeNet(4), images(62)),
    "crnn": (lambda: Crnn(4), images(28, channels=1)),
    "densenet121": (lambda: DenseNet((6, 12, 24, 16), 4), images(64)),
    "mobilenet_v2": (lambda: MobileNetV2(2), images(64)),
    "mobilenet_v3": (lambda: MobileNetV3(2), images(64)),
    "vit_b_16": (lambda: VisionTransformer(32, 8, 24, 3, 2), images(32)),
    "gpt2": (gpt2, tokens(16, 97)),
    "bert": (bert, tokens(16, 97)),
    "bert_padded": (lambda: bert(mask_input=True), tokens(16, 97)),
    "encoder_padded": (lambda: TokenEncoder(97, 16, 32, 4, 2), tokens(16, 97)),
}
