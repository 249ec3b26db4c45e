"""The results of a check: one JSON line for each, written when it exists."""

import collections
import contextlib
import json
import os
import threading
import time

# Parts of a long output that are kept: its beginning, which has the first error, and its end.
HEAD_CHARACTERS = 4000
TAIL_CHARACTERS = 8000


def clip(text):
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    left_out = len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS
    return f"{text[:HEAD_CHARACTERS]}\n[{left_out} characters left out]\n{text[-TAIL_CHARACTERS:]}"


def say(text):
    """Prints progress. The file has the results, so a reader that is gone ends nothing."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


class Results:
    """Appends lines to a file and prints the progress. The results of checks have the fields section, name, result
    (pass, fail or skip), seconds and reason, and output if the check failed; other lines are facts about the machine,
    lines of benchmarks and the summary. Thread-safe."""

    def __init__(self, path):
        """Errors: OSError if the file cannot be written."""
        self.path = path
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.begin = time.monotonic()
        self.lock = threading.Lock()
        self.records = []
        self.bench_lines = []

    def write(self, kind, **fields):
        line = json.dumps({"line": kind, "at": round(time.monotonic() - self.begin, 1), **fields})
        # One call of the system writes the whole line, so an interruption leaves no half line.
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(self.file, data) :]

    def add(self, section, name, result, seconds=0.0, reason="", output="", **more):
        record = {"section": section, "name": name, "result": result, "seconds": round(seconds, 2), "reason": reason}
        if output and result == "fail":
            record["output"] = clip(output)
        record.update(more)
        with self.lock:
            self.write("result", **record)
            self.records.append(record)
        say(f"{result:4} {seconds:6.1f} s  {section}/{name}{': ' if reason else ''}{reason}")

    def add_bench_line(self, program, line):
        with self.lock:
            self.write("bench", program=program, **line)
            self.bench_lines.append({"program": program, **line})

    def count(self, result):
        return sum(record["result"] == result for record in self.records)

    def exit_code(self, no_gpu):
        if self.count("fail"):
            return 1
        if no_gpu:
            return 3
        return 4 if self.count("skip") else 0

    def finish(self, gpu, code):
        counts = {result: self.count(result) for result in ("pass", "fail", "skip")}
        seconds = round(time.monotonic() - self.begin, 1)
        self.write("summary", counts=counts, seconds=seconds, exit_code=code)
        self.print_table()
        say(f"{gpu or 'no GPU'}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped"
              f" in {seconds:.0f} s; {self.path}")  # fmt: skip

    def print_table(self):
        by_section = collections.defaultdict(collections.Counter)
        for record in self.records:
            by_section[record["section"]][record["result"]] += 1
        say(f"\n{'section':10} {'passed':>7} {'failed':>7} {'skipped':>8}")
        for section, counts in by_section.items():
            say(f"{section:10} {counts['pass']:7} {counts['fail']:7} {counts['skip']:8}")
        for line in self.bench_lines:
            say(json.dumps(line)[:300])
        for record in self.records:
            if record["result"] != "pass":
                say(f"{record['result']}: {record['section']}/{record['name']}: {record['reason']}")
