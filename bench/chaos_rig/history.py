"""What happened when: faults, starts of processes, commits, and the states that the coordinator reports."""
import json
import threading
import time

POLL_SECONDS = 0.25
MEMORY_SECONDS = 10
TRAINING = ("training", "at_boundary", "solo")


class History:
    """Events with the seconds since the start, also written to a file, one JSON object a line. Thread-safe."""

    def __init__(self, path):
        self.begin = time.monotonic()
        self.file = open(path, "w", encoding="utf-8", buffering=1)
        self.mutex = threading.Lock()
        self.events = []
        self.faults = []
        # Times at which all shards had a version, by version.
        self.commits = {}
        self.samples = []
        # (time, bytes) of each process, by name and number of its start.
        self.memory = {}

    def now(self):
        return time.monotonic() - self.begin

    def add(self, event, **fields):
        """Returns the time of the event."""
        with self.mutex:
            now = self.now()
            self.events.append({"t": round(now, 3), "event": event, **fields})
            self.file.write(json.dumps(self.events[-1]) + "\n")
            return now

    def begin_fault(self, kind, member, seconds):
        now = self.add("fault_begin", kind=kind, member=member, seconds=round(seconds, 2))
        with self.mutex:
            self.faults.append({"kind": kind, "member": member, "begin": now, "end": None})
            return len(self.faults) - 1

    def end_fault(self, number):
        fault = self.faults[number]
        fault["end"] = self.add("fault_end", kind=fault["kind"], member=fault["member"])

    def commit(self, version):
        self.commits[version] = self.add("commit", version=version)


class Sample:
    """The parts of a status that the checker needs."""

    def __init__(self, t, status):
        run = status["runs"][0] if status["runs"] else {}
        self.t = t
        # Without a version, the coordinator does not know the run.
        self.version = run.get("version")
        self.state = run.get("state", "")
        self.groups = {group["group"]: {
            "generation": group["generation"], "state": group["state"], "step": group["step"],
            "version": group["version"], "reason": group["reason"],
            "members": sorted(member["name"] for member in group["members"])} for group in status["groups"]}
        self.workers = {worker["name"] for worker in status["workers"] if worker["connected"]}
        # The version of its shard, by name.
        self.aggregators = {
            aggregator["member"]["name"]: max((shard["version"] for shard in aggregator["shards"]), default=-1)
            for aggregator in status["aggregators"] if aggregator["member"]["connected"]}
        self.counters = status["counters"]

    def group_of(self, worker):
        """Number of the training group with this worker; None if there is none."""
        for number, group in self.groups.items():
            if worker in group["members"] and group["state"] in TRAINING and worker in self.workers:
                return number
        return None

    def is_whole(self, args):
        """All groups train with all ranks, and all members are connected."""
        return (len(self.groups) == args.groups and len(self.aggregators) == args.aggregators
                and len(self.workers) == args.groups * args.ranks + args.spares
                and all(group["state"] in TRAINING and len(group["members"]) == args.ranks
                        for group in self.groups.values()))


def shape(group):
    """What changes only if a group is formed again."""
    return {"generation": group["generation"], "members": group["members"],
            "state": "training" if group["state"] in TRAINING else group["state"]}


class Observer:
    """Records the status and the memory of the members on a thread of its own, and starts members again that have
    ended by themselves."""

    def __init__(self, cluster, history):
        self.cluster = cluster
        self.history = history
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()

    def _run(self):
        next_memory = 0
        while not self.stopping.wait(POLL_SECONDS):
            status = self.cluster.status()
            now = self.history.now()
            if status is not None:
                self._record(Sample(now, status))
            self._start_again()
            if now >= next_memory:
                next_memory = now + MEMORY_SECONDS
                self._record_memory(now)

    def _record(self, sample):
        before = self.history.samples[-1] if self.history.samples else None
        self.history.samples.append(sample)
        for number, group in sample.groups.items():
            shown = shape(group)
            if before is None or number not in before.groups or shape(before.groups[number]) != shown:
                self.history.add("group", group=number, reason=group["reason"], **shown)

    def _start_again(self):
        for member in self.cluster.members.values():
            if member.process is not None and not member.down and not member.alive:
                self.history.add("ended_by_itself", member=member.name, code=member.process.poll())
                self.cluster.start(member)

    def _record_memory(self, now):
        resident = {}
        for member in self.cluster.members.values():
            if member.alive:
                resident[member.name] = member.resident_bytes()
                key = (member.name, member.process.pid)
                self.history.memory.setdefault(key, []).append((now, resident[member.name]))
        self.history.add("memory", kib={name: size >> 10 for name, size in resident.items()})
