"""A cluster of real processes without TLS on loopback, for tests that look at it from outside.

    with Cluster(folder, programs) as cluster:
        cluster.start(workers=4)
        run = cluster.submit(RUN)
        cluster.kill("worker-2")
"""

import http.client
import json
import pathlib
import signal
import subprocess
import time

# Fast: about 20 steps a second with two groups of two workers on two cores; evaluates every epoch.
RUN = """
name: "NAME"
model {
  input { channels: 1 height: 28 width: 28 }
  layer { name: "conv1" convolution { out_channels: 8 kernel: 5 stride: 2 } }
  layer { name: "relu1" relu {} }
  layer { name: "fc1" fully_connected { out_features: 10 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data {
  idx {
    train_images: "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"
    train_labels: "/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz"
    test_images: "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"
    test_labels: "/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz"
    mean: 0.2860
    stddev: 0.3530
  }
}
batch_per_group: 64
optimizer { sgd { momentum: 0.9 } }
schedule { base_rate: 0.01 }
averaging { every_steps: 32 }
cluster { groups: 2 ranks_per_group: 2 min_ranks_per_group: 1 keep_plan: true }
stop { epochs: EPOCHS }
evaluation { every_epochs: 1 }
"""

# A network on tokens: each step trains 2 groups x 64 sequences x 16 tokens.
TOKENS_RUN = """
name: "NAME"
model {
  tokens { length: 16 }
  layer { name: "embedding" embedding { vocabulary: 32 features: 16 } }
  layer { name: "scores" fully_connected { out_features: 32 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 4096 test_samples: 128 classes: 32 } }
batch_per_group: 64
optimizer { sgd { momentum: 0.9 } }
schedule { base_rate: 0.01 }
averaging { every_steps: 16 }
cluster { groups: 2 }
stop { epochs: EPOCHS }
evaluation { every_epochs: 1 }
"""

DEADLINE = 60


def wait_for(condition, what, seconds=DEADLINE):
    """The first true value of condition()."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"after {seconds} s: {what}")


def get(address, path, headers=None):
    """(status, headers, body) of a GET request."""
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", path, headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, dict(response.getheaders()), body


class Cluster:
    def __init__(self, folder, programs):
        self.folder, self.programs = pathlib.Path(folder), pathlib.Path(programs)
        self.processes, self.logs = {}, {}
        self.coordinator = self.dashboard = None
        self.metrics = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def spawn(self, name, program, *flags):
        log = self.folder / f"{name}.log"
        command = [self.programs / program, "--insecure", *flags]
        with open(log, "ab") as file:
            start = log.stat().st_size
            self.processes[name] = subprocess.Popen(command, stderr=file, stdout=file, cwd=self.folder)
        self.logs[name] = (log, start)

    def line(self, name, text):
        """What follows `text` in the log of the process, once it is there."""

        def find():
            if self.processes[name].poll() is not None:
                raise AssertionError(self.logs[name][0].read_text())
            log, start = self.logs[name]
            _, found, rest = log.read_text()[start:].partition(text)
            return rest.splitlines()[0] if found and "\n" in rest else None

        return wait_for(find, f"{name} has not written '{text}'")

    def start_coordinator(self):
        port = self.coordinator.rpartition(":")[2] if self.coordinator else "0"
        page = self.dashboard.rpartition(":")[2] if self.dashboard else "0"
        self.spawn(
            "coordinator",
            "cadre-coordinator",
            f"--listen=127.0.0.1:{port}",
            f"--store={self.folder}/coordinator.db",
            f"--dashboard-listen=127.0.0.1:{page}",
            "--metrics-listen=127.0.0.1:0",
            "--lease-ms=2000",
        )
        self.metrics["coordinator"] = self.line("coordinator", "metrics on http://").partition("/")[0]
        self.dashboard = self.line("coordinator", "dashboard on http://").partition("/")[0]
        self.coordinator = self.line("coordinator", "listening on ").partition(",")[0]

    def start_aggregator(self, name):
        flags = (f"--data-dir={self.folder}/{name}", f"--name={name}", "--metrics-listen=127.0.0.1:0")
        self.spawn(name, "cadre-aggregator", f"--coordinator={self.coordinator}", *flags)

    def start_worker(self, name, *more):
        flags = ("--data-root=/usr/share/datasets", f"--name={name}", "--metrics-listen=127.0.0.1:0")
        self.spawn(name, "cadre-worker", f"--coordinator={self.coordinator}", *flags, *more)

    def start(self, workers):
        self.start_coordinator()
        for i in range(2):
            self.start_aggregator(f"aggregator-{i}")
        for i in range(workers):
            self.start_worker(f"worker-{i}")

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def cadre(self, *arguments):
        command = [self.programs / "cadre", *arguments, "--insecure", "--coordinator", self.coordinator]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if result.returncode != 0:
            raise AssertionError(f"{arguments}: {result.stderr}")
        return result.stdout

    def submit(self, name="walk", epochs=3, text=RUN):
        file = self.folder / f"{name}.textproto"
        file.write_text(text.replace("NAME", name).replace("EPOCHS", str(epochs)))
        self.cadre("run", str(file), "--detach")
        return json.loads(self.cadre("runs", "-o", "json"))["runs"][-1]["run"]

    def api(self, path):
        status, _, body = get(self.dashboard, f"/api/v1/{path}")
        if status != 200:
            raise AssertionError(f"{path}: {status} {body}")
        return json.loads(body)

    def run_state(self, run):
        return next(r for r in self.api("overview")["runs"] if r["run"] == run)
