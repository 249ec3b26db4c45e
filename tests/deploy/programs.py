"""What the sources say about our programs: their names, their flags, how long they drain."""

import re

# Program -> its house.
HOUSES = {
    "cadre": "cli",
    "cadre-coordinator": "coordinator",
    "cadre-aggregator": "server",
    "cadre-worker": "worker",
}
# Flags that glog defines.
GLOG_FLAGS = {"logtostderr", "v", "minloglevel"}
DEFINITION = re.compile(r"^DEFINE_(?:bool|string|int32|int64|uint32|uint64|double)\(\s*(\w+)", re.M)


def programs(root):
    """Names given to cadre_program() in the rooms' CMakeLists.txt."""
    names = set()
    for house in HOUSES.values():
        for path in (root / house).glob("CMakeLists.txt"):
            names |= set(re.findall(r"^\s*cadre_program\((\S+)", path.read_text(), re.M))
    return names


def flags(root):
    """Program -> the flags it defines (gflags are defined in main.cc only)."""
    return {
        program: GLOG_FLAGS | set(DEFINITION.findall((root / house / "main.cc").read_text()))
        for program, house in HOUSES.items()
    }


def drain_seconds(root):
    """The longest that a daemon drains before it exits: a constant, or a flag's default."""
    pattern = re.compile(r"kDrain = absl::Seconds\((\d+)\)|DEFINE_int32\(drain, (\d+)")
    found = [
        int(match[1] or match[2])
        for house in HOUSES.values()
        for match in pattern.finditer((root / house / "main.cc").read_text())
    ]
    return max(found)
