"""Facts about this machine. Everything that could hang, such as the driver or an import of PyTorch, runs in a
process of its own, all of them simultaneously, for at most FACTS_SECONDS."""

import glob
import json
import os
import shutil
import site
import sys
import time

FACTS_SECONDS = 11.0
# How long the other facts may take once it is known that there is no GPU.
NO_GPU_FACTS_SECONDS = 4.0
# How long the driver may take to answer after a hang or a fault of a kernel.
ANSWER_SECONDS = 5.0

# File names under which programs load the vendor's libraries, and the function that returns a version.
LIBRARIES = {
    "cublaslt": ("libcublasLt.so.13", "cublasLtGetVersion"),
    "cudnn": ("libcudnn.so.9", "cudnnGetVersion"),
    "nccl": ("libnccl.so.2", "ncclGetVersion"),
    "nvrtc": ("libnvrtc.so.13", "nvrtcVersion"),
}
TOOLS = ("compute-sanitizer", "ncu", "nsys", "nvidia-cuda-mps-control", "nvidia-smi", "xz", "zstd")

# Prints the name of the first card, or why there is none.
GPU_PROBE = """
import ctypes, json
def answer():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"no_gpu": f"no NVIDIA driver: {error}"}
    code = driver.cuInit(0)
    if code != 0:
        return {"no_gpu": f"the NVIDIA driver does not start: cuInit returns {code}"}
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return {"no_gpu": "the NVIDIA driver finds no GPU"}
    name = ctypes.create_string_buffer(200)
    driver.cuDeviceGetName(name, len(name), 0)
    return {"card": name.value.decode(), "cards": count.value}
print(json.dumps(answer()))
"""

# Prints the version that a library reports, and the file of the library.
LIBRARY_PROBE = """
import ctypes, json, os, sys
name, function, *folders = sys.argv[1:]
for path in [*filter(os.path.exists, (os.path.join(folder, name) for folder in folders)), name]:
    try:
        get = getattr(ctypes.CDLL(path), function)
    except OSError:
        continue
    get.restype = ctypes.c_size_t
    numbers = [ctypes.c_int(0), ctypes.c_int(0)]
    # Some return the version, others write it to addresses, which the former ignore.
    returned = get(*map(ctypes.byref, numbers))
    version = returned or [number.value for number in numbers if number.value]
    print(json.dumps({"version": version, "file": path}))
    break
"""
TORCH_PROBE = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"
SMI_QUERY = "--query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit"


def library_folders():
    """Folders of this machine with the vendor's libraries, from Python wheels or a toolkit."""
    candidates = []
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
        candidates += sorted(glob.glob(os.path.join(folder or ".", "nvidia", "*", "lib")))
    candidates += ["/usr/local/cuda/lib64"]
    names = [name for name, _ in LIBRARIES.values()]
    return [
        folder
        for folder in dict.fromkeys(candidates)
        if any(os.path.exists(os.path.join(folder, name)) for name in names)
    ]


def find_tool(name):
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/local/cuda/bin")


def probes(folders):
    """The commands that find out facts, by the names of the facts."""
    python = sys.executable
    commands = {
        "gpu": [python, "-c", GPU_PROBE],
        "torch": [python, "-c", TORCH_PROBE],
        "nvidia_smi": ["nvidia-smi", SMI_QUERY, "--format=csv,noheader"],
        "nvidia_smi_q": ["nvidia-smi", "-q"],
        "nvcc": ["nvcc", "--version"],
    }
    for name, (library, function) in LIBRARIES.items():
        commands[name] = [python, "-c", LIBRARY_PROBE, library, function, *folders]
    return commands


def run_probes(processes, commands, seconds):
    """The output of each command that ended with 0 in time; `late` has the names of those that did not end."""
    children = {}
    for name, command in commands.items():
        if find_tool(command[0]):
            children[name] = processes.start([find_tool(command[0]), *command[1:]])
    begin = time.monotonic()
    deadline = begin + seconds
    outputs = {}
    while children and time.monotonic() < deadline:
        for name in [name for name, child in children.items() if not child.running()]:
            child = children.pop(name)
            processes.end(child)
            text = child.new_output().strip()
            child.file.close()
            if child.process.returncode == 0:
                outputs[name] = text
            if name == "gpu" and "no_gpu" in text:
                deadline = min(deadline, begin + NO_GPU_FACTS_SECONDS)
        time.sleep(0.03)
    processes.end(*children.values())
    return outputs, [*children]


def parsed(text):
    return json.loads(text) if text else None


def facts(processes, folders, seconds):
    """The facts as a dictionary, which has a card or the reason why there is no GPU."""
    begin = time.monotonic()
    seconds = min(seconds, FACTS_SECONDS)
    outputs, late = run_probes(processes, probes(folders), seconds)
    gpu = parsed(outputs.get("gpu")) or {"no_gpu": "the search for a GPU failed"}
    if "gpu" in late:
        gpu = {"no_gpu": f"the NVIDIA driver hangs: it does not start in {seconds:.0f} s", "hangs": True}
    memory = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable", "SwapTotal"):
                memory[name] = value.strip()
    return {
        **gpu,
        "seconds": round(time.monotonic() - begin, 1),
        "not_known_in_time": late,
        "nvidia_smi": outputs.get("nvidia_smi"),
        "nvidia_smi_q": (outputs.get("nvidia_smi_q") or "").splitlines()[:60],
        "cores": os.cpu_count(),
        "memory": memory,
        "free_bytes": shutil.disk_usage(processes.folder).free,
        "system": " ".join(os.uname()),
        "python": sys.version.split()[0],
        "torch": outputs.get("torch"),
        "nvcc": (outputs.get("nvcc") or "").splitlines()[-1:],
        "library_folders": folders,
        **{name: parsed(outputs.get(name)) for name in LIBRARIES},
        "tools": {name: find_tool(name) for name in TOOLS},
    }


def driver_answers(processes):
    """Whether nvidia-smi, or where it is not installed cuInit, returns within ANSWER_SECONDS."""
    tool = find_tool("nvidia-smi")
    command = [tool, "-L"] if tool else [sys.executable, "-c", GPU_PROBE]
    outcome = processes.run(command, ANSWER_SECONDS)
    return not outcome.problem() and "no_gpu" not in outcome.output
