"""What the sources define about our programs: names, flags, time to drain."""

import re

# Program -> its folder.
FOLDERS = {
    "cadre": "cli",
    "cadre-coordinator": "coordinator",
    "cadre-aggregator": "server",
    "cadre-worker": "worker",
}
# Those of glog, and the one of gflags that reads flags from the environment.
LIBRARY_FLAGS = {"logtostderr", "v", "minloglevel", "fromenv"}
DEFINITION = re.compile(r"^DEFINE_(?:bool|string|int32|int64|uint32|uint64|double)\(\s*(\w+)", re.M)
DRAIN = re.compile(r"kDrain = absl::Seconds\((\d+)\)|DEFINE_int32\(drain, (\d+)")


def main_source(root, program):
    return (root / FOLDERS[program] / "main.cc").read_text()


def defined(root):
    """The programs that cadre_program() defines in these folders."""
    texts = [(root / folder / "CMakeLists.txt").read_text() for folder in FOLDERS.values()]
    return set(re.findall(r"^ *cadre_program\((\S+)", "\n".join(texts), re.M))


def flags(root):
    """Program -> the flags it defines (in main.cc, and in the files of base/daemon that main.cc includes)."""
    found = {}
    for program in FOLDERS:
        source = main_source(root, program)
        for header in re.findall(r'#include "(base/daemon/\w+)\.h"', source):
            source += (root / f"{header}.cc").read_text()
        found[program] = LIBRARY_FLAGS | set(DEFINITION.findall(source))
    return found


def readiness(root):
    """The name of the health checks that ask whether a coordinator could lead, and an aggregator has joined."""
    aggregator = (root / "server/aggregator.cc").read_text()
    names = {
        re.search(r'kReadiness\[\] = "(\w+)";', source)[1]
        for source in (main_source(root, "cadre-coordinator"), aggregator)
    }
    (name,) = names
    return name


def drain_seconds(root):
    """The longest time that a daemon drains before it exits: a constant, or a flag's default."""
    return max(
        int(match[1] or match[2])
        for program in FOLDERS
        for match in DRAIN.finditer(main_source(root, program))
    )
