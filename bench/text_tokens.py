#!/usr/bin/env python3
"""Makes token files from texts: one byte per token, or with --words one word per token.

Texts may be compressed by gzip. They are cut into pieces of 16 KiB; every --test-every-th piece goes to
DIR/test.tokens and all others to DIR/train.tokens, so both have the same distribution:

    apt-get download dict-gcide && dpkg -x dict-gcide_*.deb gcide
    bench/text_tokens.py gcide/usr/share/dictd/gcide.dict.dz --output tokens

With --words N, words and punctuation marks of the training text are numbered by falling frequency
from 1 to N - 1, as a sampled softmax expects; 0 is any other word. A token has two bytes.
"""
import argparse
import array
import collections
import gzip
import pathlib
import re
import sys

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


def words_of(text):
    return re.findall(r"\w+|[^\w\s]", text.decode(errors="replace"))


def encode(train, test, count):
    """The tokens of both texts as little-endian numbers of two bytes."""
    train, test = words_of(train), words_of(test)
    frequent = collections.Counter(train).most_common(count - 1)
    numbers = {word: number for number, (word, _) in enumerate(frequent, start=1)}

    def tokens(words):
        encoded = array.array("H", (numbers.get(word, 0) for word in words))
        if sys.byteorder == "big":
            encoded.byteswap()
        return encoded.tobytes()

    return tokens(train), tokens(test)


def vocabulary(text):
    count = int(text)
    if not 2 <= count <= 1 << 16:
        raise argparse.ArgumentTypeError(f"{count} is not between 2 and {1 << 16}")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--test-every", type=int, default=150, metavar="N")
    parser.add_argument("--words", type=vocabulary, metavar="N")
    args = parser.parse_args()
    train, test = split(b"".join(map(content, args.text)), args.test_every)
    size = 1
    if args.words:
        train, test = encode(train, test, args.words)
        size = 2
    args.output.mkdir(parents=True, exist_ok=True)
    for name, data in (("train", train), ("test", test)):
        (args.output / f"{name}.tokens").write_bytes(data)
        print(f"{name}: {len(data) // size} tokens")


if __name__ == "__main__":
    main()
