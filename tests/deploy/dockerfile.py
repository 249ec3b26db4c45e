"""Checks of deploy/Dockerfile that need no container engine.

    for problem in check(text, root, programs, user=10001): print(problem)
"""

import dataclasses
import fnmatch
import re
import shlex


@dataclasses.dataclass
class Instruction:
    line: int
    name: str
    words: list

    @property
    def options(self):
        pairs = (word[2:].partition("=") for word in self.words if word.startswith("--"))
        return {key: value for key, _, value in pairs}

    @property
    def arguments(self):
        return [word for word in self.words if not word.startswith("--")]


@dataclasses.dataclass
class Stage:
    image: str
    name: str
    instructions: list

    def runs(self):
        return [" ".join(i.words) for i in self.instructions if i.name == "RUN"]


def parse(text):
    """The stages of a Dockerfile, with the ARGs before the first FROM filled in."""
    arguments, stages, pending, start = {}, [], "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        start = start if pending else number
        pending += line.removesuffix("\\").strip() + " "
        if line.endswith("\\"):
            continue
        name, _, rest = pending.strip().partition(" ")
        pending = ""
        words = shlex.split(rest)
        instruction = Instruction(start, name.upper(), words)
        if instruction.name == "ARG" and not stages:
            key, _, value = words[0].partition("=")
            arguments[key] = value
        elif instruction.name == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda m: arguments.get(m[1], ""), words[0])
            named = len(words) == 3 and words[1].upper() == "AS"
            stages.append(Stage(image, words[2] if named else "", []))
        elif stages:
            stages[-1].instructions.append(instruction)
    return stages


def ignored(path, patterns):
    """Whether .dockerignore leaves the path out of the context."""
    parts = path.split("/")
    ancestors = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(
        fnmatch.fnmatch(ancestor, pattern.removeprefix("**/"))
        for pattern in patterns
        for ancestor in ancestors
    )


def check_copies(stage, earlier, root, patterns):
    problems = []
    for copy in (i for i in stage.instructions if i.name in ("COPY", "ADD")):
        if copy.name == "ADD":
            problems.append(f"line {copy.line}: use COPY")
        source = copy.options.get("from")
        if source is not None:
            if source not in earlier:
                problems.append(f"line {copy.line}: no earlier stage is named {source}")
            continue
        for path in copy.arguments[:-1]:
            if not (root / path).exists():
                problems.append(f"line {copy.line}: {path} does not exist")
            elif path != "." and ignored(path, patterns):
                problems.append(f"line {copy.line}: .dockerignore leaves out {path}")
    return problems


def copied_programs(stage):
    return {
        path.rpartition("/")[2]
        for copy in stage.instructions
        if copy.name == "COPY" and "from" in copy.options and copy.arguments[-1].endswith("/bin/")
        for path in copy.arguments[:-1]
    }


def check_final(stage, programs, user):
    problems = []
    users = [i.words[0] for i in stage.instructions if i.name == "USER"]
    if not users or users[-1].split(":")[0] != str(user):
        problems.append(f"the last USER must be {user}, as in the manifests, by number")
    copied = copied_programs(stage)
    for name in sorted(programs - copied):
        problems.append(f"the image lacks the program {name}")
    for name in sorted(copied - programs):
        problems.append(f"the image copies {name}, which is no program of ours")
    labels = " ".join(word for i in stage.instructions if i.name == "LABEL" for word in i.words)
    for label in ("title", "description", "version"):
        if f"org.opencontainers.image.{label}=" not in labels:
            problems.append(f"the image has no label {label}")
    commands = [i for i in stage.instructions if i.name in ("CMD", "ENTRYPOINT")]
    if not commands:
        problems.append("the image has no command")
    return problems


def check(text, root, programs, user):
    """`programs`: what CMake builds into build/bin for users. `user`: runAsUser of the pods."""
    stages = parse(text)
    patterns = [
        line
        for line in (root / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    problems, names = [], []
    if len(stages) < 2:
        return ["needs a build stage and a runtime stage"]
    for stage in stages:
        tag = stage.image.partition(":")[2]
        if tag in ("", "latest"):
            problems.append(f"stage {stage.name}: image {stage.image} needs a tag")
        problems += check_copies(stage, names, root, patterns)
        names.append(stage.name)
        for run in stage.runs():
            if "setup.sh" in run and "rm -rf /var/lib/apt/lists/*" not in run:
                problems.append(f"stage {stage.name}: leaves the package lists in its layer")
            if "apt-get" in run:
                problems.append(f"stage {stage.name}: packages are listed in setup.sh only")
    build = " ".join(stages[0].runs())
    if "setup.sh build" not in build:
        problems.append(f"stage {stages[0].name} does not call setup.sh build")
    match = re.search(r"build\.sh (?:--cuda \S+ )?([^&]*)", build)
    if match is None or set(match[1].split()) != programs:
        problems.append(f"stage {stages[0].name} does not build {' '.join(sorted(programs))}")
    if "setup.sh runtime" not in " ".join(stages[-1].runs()):
        problems.append(f"stage {stages[-1].name} does not call setup.sh runtime")
    return problems + check_final(stages[-1], programs, user)
