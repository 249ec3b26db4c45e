#!/usr/bin/env python3
"""Compares the loader of a worker with PyTorch's DataLoader and torchvision on JPEG files.

Both make the same batches: a crop of random area and shape, resized to the input of the model, mirrored and normalized
in fp32. torchvision decodes with Pillow (`pil`, as its ImageFolder does) or with torchvision.io (`tensor`), and resizes
images of bytes; the faster one counts. One thread of the loader is compared with one process of the DataLoader.

    bench/loader_torchvision.py --threads 1,2
    bench/loader_torchvision.py --folder imagenet/train --threads 1,2,4

Programs run alternately, --rounds times, and medians are compared. Prints one JSON line for each number of threads.
Without --folder, images are generated: 500 x 375 pixels, quality 90, of noise at all scales, which compresses like
photographs. Requires PyTorch and torchvision, and a quiet machine.
"""
import pathlib
import statistics
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import pil_loader
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg, read_file
from torchvision.transforms import v2

from runner import last_line, parser, report

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
# Batches before the time starts, for each process.
WARMUP = 3


def parse():
    p = parser(__doc__)
    p.add_argument("--folder", default="", help="folder with one folder of JPEG files for each class")
    p.add_argument("--images", type=int, default=128, help="images that are generated without --folder")
    p.add_argument("--threads", default="1,2", help="numbers of threads, or processes")
    p.add_argument("--size", type=int, default=224, help="rows and columns of a sample")
    p.add_argument("--batch", type=int, default=64, help="samples of a batch")
    p.add_argument("--batches", type=int, default=16, help="timed batches of a round, for each process")
    p.add_argument("--rounds", type=int, default=5, help="runs of each program")
    return p.parse_args()


class Images(Dataset):
    """Samples of JPEG files, repeated without end."""

    def __init__(self, folder, decoder, size):
        self.files = sorted(str(path) for path in pathlib.Path(folder).rglob("*.jpg"))
        self.decoder = decoder
        self.transform = v2.Compose([
            v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION),
        ])

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        path = self.files[index % len(self.files)]
        image = (pil_loader(path) if self.decoder == "pil"
                 else decode_jpeg(read_file(path), mode=ImageReadMode.RGB))
        return self.transform(image)


def torchvision_rate(args, folder, decoder, processes):
    """Images per second."""
    loader = DataLoader(Images(folder, decoder, args.size), batch_size=args.batch, num_workers=processes)
    batches = iter(loader)
    for _ in range(WARMUP * processes):
        next(batches)
    count = args.batches * processes
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * args.batch / (time.perf_counter() - start)


def cadre_rate(args, folder, threads):
    line, _ = last_line([f"{args.bin}/bench_loader", "--folder", folder, "--threads", threads, "--rounds", 1, "--size",
                         args.size, "--batch", args.batch])
    return line["images_per_second"]


def generate(folder, count):
    """Noise at scales from 1 to 128 pixels, with amplitudes that grow with the scale."""
    torch.manual_seed(1)
    for number in range(count):
        values = torch.full((3, 375, 500), 128.0)
        for scale in (1, 2, 4, 8, 16, 32, 64, 128):
            rows, columns = -(-375 // scale), -(-500 // scale)
            noise = 256 * torch.rand(1, rows, columns) + 64 * torch.rand(3, rows, columns) - 160
            noise = noise.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
            values += 0.05 * scale**0.5 * noise[:, :375, :500]
        path = pathlib.Path(folder) / f"class-{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_jpeg(values.clamp(0, 255).to(torch.uint8), quality=90).numpy().tobytes())


def compare(args, folder, threads):
    rates = {"cadre": [], "pil": [], "tensor": []}
    for _ in range(args.rounds):
        rates["cadre"].append(cadre_rate(args, folder, threads))
        for decoder in ("pil", "tensor"):
            rates[decoder].append(torchvision_rate(args, folder, decoder, threads))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rival = max(("pil", "tensor"), key=medians.get)
    ratios = [a / b for a, b in zip(rates["cadre"], rates[rival])]
    report(args, "loader_torchvision", threads=threads, size=args.size, batch=args.batch, rounds=args.rounds,
           ratio=round(medians["cadre"] / medians[rival], 3), spread=[round(min(ratios), 3), round(max(ratios), 3)],
           against=rival, images_per_second={name: round(value, 1) for name, value in medians.items()})


def main():
    args = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="loader-") as made:
        folder = args.folder or made
        if not args.folder:
            generate(folder, args.images)
        for threads in map(int, args.threads.split(",")):
            compare(args, folder, threads)


if __name__ == "__main__":
    main()
