#!/usr/bin/env python3
"""Makes token files (one byte per token) from texts, for models of bytes.

Texts may be compressed by gzip. They are cut into pieces of 16 KiB; every --test-every-th piece goes to
DIR/test.tokens and all others to DIR/train.tokens, so both have the same distribution:

    apt-get download dict-gcide && dpkg -x dict-gcide_*.deb gcide
    bench/text_tokens.py gcide/usr/share/dictd/gcide.dict.dz --output tokens
"""
import argparse
import gzip
import pathlib

PIECE = 1 << 14


def content(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def split(data, every):
    """(train, test) of the text `data`."""
    pieces = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
    test = pieces[every - 1 :: every]
    del pieces[every - 1 :: every]
    return b"".join(pieces), b"".join(test)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--test-every", type=int, default=150, metavar="N")
    args = parser.parse_args()
    train, test = split(b"".join(map(content, args.text)), args.test_every)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, data in (("train", train), ("test", test)):
        (args.output / f"{name}.tokens").write_bytes(data)
        print(f"{name}: {len(data)} tokens")


if __name__ == "__main__":
    main()
