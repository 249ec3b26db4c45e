"""Keeps the contributions of all rounds, and computes every version again from them.

An aggregator removes contributions once their mean is durable. The archive links every contribution as soon as its
file appears (inotify), so that its data outlives the removal, and copies it when the version of its round appears.
At the end, the records of the coordinator's store name participants and weights; their weighted mean, computed here
in fp32 and in the order of groups, must equal the bytes of the aggregators' versions.
"""
import array
import ctypes
import os
import re
import select
import shutil
import sqlite3
import struct
import threading

from chaos_rig.cluster import LINKS

IN_CREATE, IN_MOVED_TO = 0x100, 0x80
STAGE = re.compile(r"stage-(\d+)-(\d+)-(\d+)-(\d+)$")
VERSION = re.compile(r"version-(\d+)$")


class Archive:
    """Follows the run's folders of all aggregators on a thread of its own."""

    def __init__(self, folders, target, history):
        """`folders`: the run's folder by aggregator."""
        self.folders = folders
        self.target = target
        self.history = history
        # Contributions whose file was replaced by an empty one: they were staged again from the start.
        self.staged_again = 0
        self.seen = {}
        self.stopping = threading.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self.watches = {}
        for name, folder in folders.items():
            os.makedirs(os.path.join(target, name))
            os.makedirs(os.path.join(folder, "..", LINKS), exist_ok=True)
            # The parent of the run's folder, and with it that folder: an aggregator that has lost its files makes it
            # again.
            self._watch(name, os.path.dirname(folder))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()
        os.close(self.fd)

    def _run(self):
        while not self.stopping.is_set():
            if not select.select([self.fd], [], [], 0.2)[0]:
                continue
            events = os.read(self.fd, 1 << 16)
            while events:
                watch, _, _, size = struct.unpack_from("iIII", events)
                name = events[16:16 + size].rstrip(b"\0").decode()
                events = events[16 + size:]
                if watch in self.watches:
                    self._appeared(self.watches[watch], name)

    def _watch(self, aggregator, folder):
        watch = self.libc.inotify_add_watch(self.fd, folder.encode(), IN_CREATE | IN_MOVED_TO)
        self.watches[watch] = aggregator
        for file in sorted(os.listdir(folder)):
            self._appeared(aggregator, file)

    def _appeared(self, aggregator, file):
        if file == os.path.basename(self.folders[aggregator]):
            self._watch(aggregator, self.folders[aggregator])
        elif STAGE.match(file):
            self._link(aggregator, file)
        elif match := VERSION.match(file):
            self._keep(aggregator, file, int(match[1]))

    def _links(self, aggregator):
        return os.path.join(self.folders[aggregator], "..", LINKS)

    def _link(self, aggregator, file):
        link = os.path.join(self._links(aggregator), file)
        try:
            path = os.path.join(self.folders[aggregator], file)
            if os.path.exists(link):
                if os.path.samefile(link, path):
                    return
                os.unlink(link)
                self.staged_again += 1
            os.link(path, link)
        except FileNotFoundError:
            # A full disk: the aggregator has removed the file again.
            pass
        except OSError as error:
            self.history.add("not_archived", member=aggregator, file=file, error=str(error))

    def _keep(self, aggregator, file, version):
        """Copies the version and the contributions of its round."""
        links = self._links(aggregator)
        try:
            shutil.copy(os.path.join(self.folders[aggregator], file), os.path.join(self.target, aggregator, file))
            for link in os.listdir(links):
                if int(STAGE.match(link)[1]) <= version:
                    shutil.move(os.path.join(links, link), os.path.join(self.target, aggregator, link))
        except OSError as error:
            self.history.add("not_archived", member=aggregator, file=file, error=str(error))
        shards = self.seen.setdefault(version, set())
        if aggregator not in shards and len(shards | {aggregator}) == len(self.folders):
            self.history.commit(version)
        shards.add(aggregator)


def replay(archive, records):
    """Computes every version again from an archive's folder and the commit records. Returns a report for the result."""
    shards = [os.path.join(archive, name) for name in sorted(os.listdir(archive))]
    report = {"rounds": len(records), "replayed_rounds": 0, "replay_equal": False, "differences": [],
              "missing_records": sorted(set(range(1, max(records, default=0))) - set(records))}
    last = False
    offsets = None
    for number in sorted(records):
        try:
            offsets = offsets or tensor_offsets(shards, number, records[number])
            wrong = [shard for shard in shards if not equals(shard, number, records[number], offsets)]
        except FileNotFoundError as error:
            report.setdefault("not_replayed", []).append(str(error))
            last = False
            continue
        report["replayed_rounds"] += 1
        report["differences"] += [f"version {number} on {os.path.basename(shard)}" for shard in wrong]
        last = not wrong
    report["replay_equal"] = last and not report["differences"]
    return report


def equals(folder, number, record, offsets):
    """Whether the mean of the contributions in the folder is the version in it, bit by bit."""
    meta, version = read_blocks(os.path.join(folder, f"version-{number}"))
    _, _, begin, end = struct.unpack_from("<QQqq", meta)
    total = float(sum(p["samples"] for p in record["participants"]))
    mean = None
    for p in record["participants"]:
        weight = array.array("f", [p["samples"] / total])[0]
        model = array.array("f", bytes(4 * (end - begin)))
        covered = 0
        for header, values in contributions_of(folder, number, p):
            at = 0
            for tensor, first_element, past in ranges_of(header):
                flat, size = offsets[tensor] + first_element - begin, past - first_element
                model[flat:flat + size] = values[at:at + size]
                at += size
            covered += at
        if covered != end - begin:
            raise FileNotFoundError(f"round {number}: a contribution of group {p['group']} is missing in {folder}")
        # An array of floats rounds each product and each sum once, as fp32 arithmetic does: products are exact in
        # double, and sums of two floats are rounded correctly through double.
        products = model if weight == 1 else array.array("f", [weight * x for x in model])
        mean = products if mean is None else array.array("f", [a + b for a, b in zip(mean, products)])
    return mean is not None and mean.tobytes() == version.tobytes()


def tensor_offsets(shards, number, record):
    """Positions of the tensors in the parameter order: the ranges of one group cover all of them."""
    sizes = {}
    for shard in shards:
        for header, _ in contributions_of(shard, number, record["participants"][0]):
            for tensor, _, past in ranges_of(header):
                sizes[tensor] = max(sizes.get(tensor, 0), past)
    offsets, at = {}, 0
    for tensor in range(len(sizes)):
        offsets[tensor] = at
        at += sizes[tensor]
    return offsets


def contributions_of(folder, number, p):
    """Headers and values of a participant's contributions to one shard: one of each rank that owns part of it."""
    for rank in range(p["ranks"]):
        path = os.path.join(folder, f"stage-{number}-{p['group']}-{p['generation']}-{rank}")
        if os.path.exists(path):
            yield read_blocks(path)


def read_blocks(path):
    """Meta and values of a block file (server/block_file.h), without its checks."""
    with open(path, "rb") as file:
        data = file.read()
    _, size, block, meta, _, _ = struct.unpack_from("<QQIIII", data)
    at = 32 + meta
    values = array.array("f")
    while size > 0:
        values.frombytes(data[at + 4:at + 4 + min(block, size)])
        at, size = at + 4 + block, size - block
    return data[32:32 + meta], values


def commits(store, run):
    """The complete commit records of the run by round, from the store of a coordinator that has ended."""
    database = sqlite3.connect(store)
    prefix = f"commit/{run}/"
    rows = database.execute("select value from record where key >= ? and key < ?", (prefix, prefix + "~")).fetchall()
    database.close()
    records = {}
    for (value,) in rows:
        fields = decode(value)
        # Version 0 is no average; a record that is not complete made no version.
        if not first(fields, 2) or not first(fields, 7):
            continue
        records[first(fields, 2)] = {"step": first(fields, 4), "participants": [
            {"group": first(p, 1), "generation": first(p, 2), "ranks": first(p, 3), "samples": first(p, 4)}
            for p in map(decode, fields.get(3, []))]}
    return records


def ranges_of(header):
    """(tensor, begin, end) of each range of a ContributionHeader."""
    return [tuple(first(decode(r), field) for field in (1, 2, 3)) for r in decode(header).get(11, [])]


def first(fields, number):
    return fields.get(number, [0])[0]


def decode(data):
    """Fields of a protobuf message: values by number; submessages remain bytes."""
    fields, at = {}, 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        kind = tag & 7
        size = varint() if kind in (0, 2) else {1: 8, 5: 4}[kind]
        if kind == 0:
            fields.setdefault(tag >> 3, []).append(size)
        else:
            fields.setdefault(tag >> 3, []).append(data[at:at + size])
            at += size
    return fields
