"""The checker: figures of a history."""
import statistics

# A group stalls if it makes no progress for longer than this, or for two rounds without faults if those take longer.
MIN_STALL_SECONDS = 3
# Memory is compared from this time after a process's start, over at least this time.
WARM_UP_SECONDS = 120
MIN_MEMORY_SECONDS = 120


def median(values):
    values = [value for value in values if value is not None]
    return round(statistics.median(values), 3) if values else None


def summary(values):
    values = [value for value in values if value is not None]
    if not values:
        return {"count": 0, "median": None, "max": None}
    return {"count": len(values), "median": median(values), "max": round(max(values), 3)}


class Checker:
    def __init__(self, args, history, records):
        """`records`: the commit records by version."""
        self.args = args
        self.history = history
        # In the order of time: (time, step, samples of the round).
        self.commits = [(t, records[version]["step"], sum(p["samples"] for p in records[version]["participants"]))
                        for version, t in history.commits.items() if version in records]
        self.round_seconds = None

    def reference(self, begin, end):
        """Rates of the undisturbed run, in steps and in samples per second; keeps the length of its rounds."""
        times = [t for t, _, _ in self.commits if begin <= t <= end]
        if len(times) < 3:
            raise RuntimeError(f"the undisturbed run has committed {len(times)} rounds: too few to compare with")
        self.round_seconds = statistics.median(b - a for a, b in zip(times, times[1:]))
        seconds = times[-1] - times[0]
        return self.steps(times[0], times[-1]) / seconds, self.samples(times[0], times[-1]) / seconds

    def steps(self, begin, end):
        """Steps of the commits after `begin`, up to `end`."""
        before, after = (max((step for t, step, _ in self.commits if t <= time), default=0) for time in (begin, end))
        return after - before

    def samples(self, begin, end):
        return sum(samples for t, _, samples in self.commits if begin < t <= end)

    def next_commit(self, time):
        return next((t for t, _, _ in self.commits if t > time), None)

    def fault(self, fault, until):
        """What followed a fault up to `until`, when the next one began: see bench/chaos_rig/README.md."""
        begin, end = fault["begin"], fault["end"]
        commit = self.next_commit(begin)
        out = {"kind": fault["kind"], "member": fault["member"], "t": round(begin, 2), "seconds": round(end - begin, 2)}
        out["next_commit_s"] = commit and round(commit - begin, 3)
        out["late_s"] = self.late(begin, end)
        old = next((s for s in reversed(self.history.samples) if s.t <= begin), None)
        after = [sample for sample in self.history.samples if end < sample.t <= until]
        # A loss may be noticed after the end of the fault, when a lease ends.
        broken = max((sample.t for sample in after if not sample.is_whole(self.args)), default=end)
        whole = next((sample for sample in after if sample.t > broken), None)
        out["whole_s"] = whole and round(whole.t - end, 3)
        if old and whole:
            out["reformed"] = sum(group["generation"] != whole.groups[g]["generation"]
                                  for g, group in old.groups.items())
        if fault["kind"].startswith(("kill_", "lose_", "restart_")):
            rejoined = next((s.t for s in after if self.is_back(s, fault, old)), None)
            out["rejoin_s"] = rejoined and round(rejoined - end, 3)
        if fault["kind"].endswith("_coordinator") and "rejoin_s" in out:
            commit = self.next_commit(end)
            out["commit_after_restart_s"] = commit and round(commit - end, 3)
        return out

    def late(self, begin, end):
        """By how much the longest interval between commits from `begin` to the end of the next round after `end` was
        longer than a round without faults."""
        times = [t for t, _, _ in self.commits]
        gaps = [b - a for a, b in zip(times, times[1:]) if b > begin and a < end + self.round_seconds]
        return round(max(0.0, max(gaps) - self.round_seconds), 3) if gaps else None

    def is_back(self, sample, fault, old):
        """Whether the member's new process has work, or is idle because there is none: a worker is a rank of a training
        group of a new generation, or a spare worker has taken its rank and all groups train; an aggregator is
        connected with a current version; a coordinator has all members."""
        name = fault["member"]
        role = fault["kind"].rsplit("_", 1)[1]
        if role == "aggregator":
            return sample.aggregators.get(name, -1) >= (old.version or 0 if old else 0)
        if role == "coordinator":
            return old is not None and old.workers <= sample.workers and set(old.aggregators) <= set(sample.aggregators)
        group = sample.group_of(name)
        if group is None:
            return name in sample.workers and sample.is_whole(self.args)
        return old is None or sample.groups[group]["generation"] not in {g["generation"] for g in old.groups.values()}

    def stalled_seconds(self, begin, end):
        """Seconds without progress, summed over groups, beyond the limit."""
        limit = max(MIN_STALL_SECONDS, 2 * self.round_seconds)
        stalled = 0.0
        for number in range(self.args.groups):
            progress, before = [begin], None
            for sample in self.history.samples:
                group = sample.groups.get(number)
                now = group and (group["generation"], group["step"], group["version"])
                if group and group["state"] in ("training", "at_boundary") and now != before:
                    progress.append(sample.t)
                    before = now
            times = sorted(t for t in progress if begin <= t <= end) + [end]
            stalled += sum(max(0.0, b - a - limit) for a, b in zip(times, times[1:]))
        return round(stalled, 2)

    def memory(self):
        """Growth of processes that have lived long enough: the newest of each member."""
        out = {}
        for (name, _), samples in self.history.memory.items():
            warm = [(t, size) for t, size in samples if t >= samples[0][0] + WARM_UP_SECONDS and size > 0]
            if len(warm) < 2 or warm[-1][0] - warm[0][0] < MIN_MEMORY_SECONDS:
                continue
            out[name] = {"seconds": round(warm[-1][0] - warm[0][0]), "start_mib": round(warm[0][1] / 2**20, 1),
                         "end_mib": round(warm[-1][1] / 2**20, 1), "growth": round(warm[-1][1] / warm[0][1] - 1, 4)}
        return out

    def violations(self):
        """Breaches of rules that no fault excuses."""
        out = []
        versions = list(self.history.commits)
        if versions != sorted(versions):
            out.append("versions appeared out of order")
        owners = {}
        for sample in self.history.samples:
            for number, group in sample.groups.items():
                if group["generation"] == 0:
                    continue
                owner = (number, tuple(group["members"]))
                if owners.setdefault(group["generation"], owner) != owner and group["members"]:
                    out.append(f"generation {group['generation']} belongs to {owners[group['generation']]} and {owner}")
        seen = [sample.version for sample in self.history.samples if sample.version is not None]
        if any(b < a for a, b in zip(seen, seen[1:])):
            out.append("the run went back to an older version")
        if any(sample.state in ("failed", "stopped") for sample in self.history.samples):
            out.append("the run ended")
        return sorted(set(out))


def by_kind(faults):
    out = {}
    for kind in sorted({fault["kind"] for fault in faults}):
        those = [fault for fault in faults if fault["kind"] == kind]
        keys = ("next_commit_s", "late_s", "rejoin_s", "commit_after_restart_s", "whole_s")
        out[kind] = {"count": len(those)} | {
            key: median(fault.get(key) for fault in those) for key in keys if any(key in fault for fault in those)}
        out[kind]["groups_reformed"] = sum(fault.get("reformed", 0) for fault in those)
    return out
