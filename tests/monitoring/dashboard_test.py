#!/usr/bin/env python3
"""The dashboard in headless Chromium, while a worker is killed and the coordinator is restarted.

usage: dashboard_test.py PROGRAMS [--screenshots FOLDER]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

from cluster import TOKENS_RUN, Cluster, get, wait_for

SCREENSHOTS = None
if "--screenshots" in sys.argv:
    at = sys.argv.index("--screenshots")
    SCREENSHOTS = pathlib.Path(sys.argv.pop(at + 1)).resolve()
    sys.argv.pop(at)
PROGRAMS = pathlib.Path(sys.argv.pop(1)).resolve()

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
except ImportError:
    webdriver = None

MAX_FIRST_LOAD = 120_000
HOSTILE = "<img src=x onerror=alert(1)>"


def browser(folder, width=1440, height=1000):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        f"--window-size={width},{height}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def points(history):
    """version -> (step, loss) and step -> accuracy."""
    commits = {e["commit"]["version"]: e["commit"] for e in history["entries"] if "commit" in e}
    tests = {e["evaluation"]["step"]: e["evaluation"] for e in history["entries"] if "evaluation" in e}
    return (
        {v: (c["step"], c["loss"]) for v, c in commits.items()},
        {s: t["accuracy"] for s, t in tests.items()},
    )


class DashboardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if webdriver is None or not pathlib.Path("/usr/bin/chromedriver").exists():
            reason = "selenium or chromedriver is missing; `deploy/setup.sh test` installs them"
            if os.environ.get("CADRE_REQUIRE_TOOLS"):
                raise AssertionError(reason)
            raise unittest.SkipTest(reason)
        # Cleaned up also if a later step fails.
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cluster = Cluster(cls.folder.name, PROGRAMS)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.cluster.start(workers=5)
        cls.driver = browser(f"{cls.folder.name}/profile")
        cls.addClassCleanup(cls.driver.quit)

    def open(self, page=""):
        self.driver.get(f"http://{self.cluster.dashboard}/#/{page}")

    def script(self, text):
        return self.driver.execute_script(f"return {text}")

    def wait(self, expression, what, seconds=20):
        return wait_for(lambda: self.script(expression), what, seconds)

    def text(self):
        return self.driver.find_element("id", "main").text

    def state(self, expression):
        """An expression over the state of the page, `data`."""
        return self.driver.execute_async_script(
            "const done = arguments[0]; import('/app.js').then(({ data }) => done(" + expression + "));"
        )

    def screenshot(self, name):
        if SCREENSHOTS is None:
            return
        for width, height in ((390, 844), (1440, 1000)):
            for scheme in ("light", "dark"):
                self.driver.execute_cdp_cmd(
                    "Emulation.setDeviceMetricsOverride",
                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
                )
                feature = {"name": "prefers-color-scheme", "value": scheme}
                self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
                time.sleep(0.6)
                self.driver.save_screenshot(str(SCREENSHOTS / f"{name}-{width}-{scheme}.png"))
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def follow(self, run):
        """Collects what `cadre watch -o json` prints, until it ends."""
        command = [PROGRAMS / "cadre", "watch", run, "-o", "json", "--insecure"]
        command += ["--coordinator", self.cluster.coordinator]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        updates = []
        thread = threading.Thread(target=lambda: updates.extend(map(json.loads, process.stdout)))
        thread.start()
        return process, thread, updates

    def test_walk(self):
        self.open()
        self.wait("document.querySelector('#main h1')?.textContent === 'Overview'", "no overview")
        run = self.cluster.submit("walk", epochs=500)
        watch, thread, updates = self.follow(run)
        self.open(f"run/{run}")
        self.wait("document.querySelectorAll('.uplot').length === 7", "no charts")
        wait_for(lambda: self.state(f"(data.histories.get('{run}')?.size ?? 0) > 20"), "no history", 90)
        self.check_reactions(run)
        self.check_groups(run)
        self.check_restart(run)
        self.check_viewers(run)
        # The run is stopped when it has been seen long enough, whatever the speed of the machine.
        wait_for(lambda: len(points(self.cluster.api(f"runs/{run}/history"))[1]) >= 3, "few evaluations", 150)
        self.cluster.cadre("stop", run)
        wait_for(lambda: self.cluster.run_state(run)["state"] == "stopped", "the run does not end")
        thread.join(timeout=20)
        watch.kill()
        watch.wait()
        watch.stdout.close()
        self.check_points(run, updates)
        self.check_pages(run)
        self.check_hostile_names()
        self.check_requests()

    def test_tokens(self):
        run = self.cluster.submit("tokens", epochs=100_000, text=TOKENS_RUN)
        self.open(f"run/{run}")
        wait_for(lambda: self.cluster.run_state(run)["rounds_committed"] > 20, "no rounds")
        wait_for(lambda: self.cluster.run_state(run)["test_perplexity"], "no evaluation")
        self.wait("document.querySelectorAll('.uplot').length === 9", "no charts of tokens")

        def tile(name):
            """The number that the tile with this name shows."""
            lines = "[...document.querySelectorAll('.tiles > *')].map((tile) => tile.innerText.split(/\\s*\\n\\s*/))"
            found = f"{lines}.find((tile) => tile[1] === '{name}')?.[0]"
            text = wait_for(lambda: self.script(found), f"no tile '{name}'")
            return float(text.replace(",", ""))

        self.assertGreater(tile("tokens/s"), 100)
        for name in ("perplexity", "test perplexity"):
            self.assertGreater(tile(name), 1)
            self.assertLess(tile(name), 40)
        titles = self.script("[...document.querySelectorAll('.card h3')].map((title) => title.innerText)")
        self.assertEqual(titles[-2:], ["Throughput of tokens (tokens/s)", "Perplexity (by the training loss)"])
        rows = "[...document.querySelectorAll('.card')].at(-1).querySelectorAll('details tbody tr')"
        self.script("[...document.querySelectorAll('.card')].at(-1).querySelector('details').open = true")
        shown = wait_for(lambda: self.script(f"[...{rows}].map((row) => row.cells[1].textContent)"), "no table")
        self.assertTrue(all(1 < float(value) < 40 for value in shown), shown)
        self.screenshot("tokens")
        self.cluster.cadre("stop", run)
        wait_for(lambda: self.cluster.run_state(run)["state"] == "stopped", "the run does not end")

    def check_reactions(self, run):
        """A new generation appears within two seconds of the end of the one before, when it is formed.

        The page records when it first shows a generation, so that the test's own requests do not count.
        """
        self.open(f"run/{run}/groups")
        member = next(g for g in self.cluster.api("overview")["groups"] if g["run"] == run)["members"][1]
        self.wait(f"document.getElementById('main').innerText.includes('{member['name']}')", "no members")
        self.driver.execute_script(
            "const main = document.getElementById('main');"
            "const look = () => { for (const [text] of main.innerText.matchAll(/generation \\d+/g))"
            " window.shown[text] ??= Date.now(); };"
            "window.shown = {}; look();"
            "new MutationObserver(look).observe(main, { childList: true, subtree: true, characterData: true });"
        )
        before = self.script("Object.keys(window.shown)")
        self.assertEqual(len(before), 2)
        self.cluster.kill(member["name"])

        def events(kind):
            """Events of this kind with the name of their generation, oldest first."""
            found = [one for one in self.cluster.api("events")["events"] if one["kind"] == kind]
            named = [one | {"generation": re.match(r"generation \d+", one["text"])[0]} for one in found]
            return sorted(named, key=lambda one: one["number"])

        def first_shown():
            """The first generation after those `before` that the page has shown, with the time when it did.

            A generation that another one replaces before the page is drawn is never shown.
            """
            shown = self.script("window.shown")
            new = [one for one in events("group_started") if one["generation"] not in before]
            return next(((one, shown[one["generation"]]) for one in new if one["generation"] in shown), None)

        try:
            started, shown = wait_for(first_shown, "no new generation is shown")
        except AssertionError as error:
            raise AssertionError(f"{error}: events {self.cluster.api('events')}, {self.script('window.shown')}") from None
        ended = [one for one in events("group_ended")
                 if one["number"] < started["number"] and one["group"] == started["group"]][-1]
        seconds = (shown - ended["time_ms"]) / 1000
        print(f"a new generation is shown {seconds:.2f} s after the end of the one before", flush=True)
        self.assertLess(seconds, 2.0, "the generation appears too late")
        # The ranks of the generation are read after its event.
        self.wait(f"!document.getElementById('main').innerText.includes('{member['name']}')", "the rank is still shown")
        self.open("events")
        self.wait(f"document.body.innerText.includes({json.dumps(started['text'])})", "the event is not shown")

    def check_groups(self, run):
        self.open(f"run/{run}/groups")
        self.wait("document.querySelectorAll('#main table').length >= 4", "no tables of the groups")
        self.assertIn("Memory of the largest rank", self.text())
        self.screenshot("groups")
        self.open("members")
        self.wait("document.querySelectorAll('#main tbody tr').length >= 6", "no members")
        self.screenshot("members")

    def check_restart(self, run):
        self.open(f"run/{run}")
        before = self.cluster.api(f"runs/{run}/history")["newest"]
        self.cluster.kill("coordinator")
        self.wait("document.getElementById('link').className === 'bad'", "a loss is not shown", 10)
        self.cluster.start_coordinator()
        self.wait("document.getElementById('link').textContent === 'live'", "no reconnection", 30)
        wait_for(
            lambda: self.cluster.api(f"runs/{run}/history")["newest"] > before + 5, "no progress after the restart"
        )
        newest = self.cluster.api(f"runs/{run}/history")["newest"]
        wait_for(lambda: self.state(f"Math.max(...data.histories.get('{run}').keys()) >= {newest}"), "behind")
        self.assertEqual(
            self.state(f"(() => {{ const k = [...data.histories.get('{run}').keys()].sort((a, b) => a - b); "
                       "return k.at(-1) - k[0] + 1 - k.length; })()"),
            0,
            "the history has a gap",
        )

    def check_viewers(self, run):
        """50 viewers cost less than 5 % of a core."""
        del run

        def cpu():
            fields = pathlib.Path(f"/proc/{self.cluster.processes['coordinator'].pid}/stat").read_text()
            ticks = fields.rpartition(")")[2].split()[11:13]
            return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

        def used(seconds):
            begin, start = cpu(), time.monotonic()
            time.sleep(seconds)
            return (cpu() - begin) / (time.monotonic() - start)

        alone = used(4)
        host, _, port = self.cluster.dashboard.partition(":")
        viewers = subprocess.Popen(
            [sys.executable, "-c", VIEWERS, host, port, "50"], stdout=subprocess.PIPE, text=True
        )
        self.assertEqual(viewers.stdout.readline(), "connected\n")
        many = used(4)
        viewers.terminate()
        viewers.wait()
        viewers.stdout.close()
        print(f"coordinator: {alone:.1%} of a core with one viewer, {many:.1%} with 51", flush=True)
        self.assertLess(many - alone, 0.05)

    def check_points(self, run, updates):
        watched = {u["run"]["version"]: (u["run"]["step"], u["run"]["loss"]) for u in updates if u["run"]["version"]}
        self.assertGreater(len(watched), 20)
        # The page, and the history that it reads, follow the coordinator with a delay.
        wait_for(
            lambda: self.state(
                f"[...data.histories.get('{run}').values()].some((e) => e.commit?.version === {max(watched)})"
            ),
            "the page lacks the newest version",
        )
        losses, tests = points(self.cluster.api(f"runs/{run}/history"))
        page = self.state(
            f"[...data.histories.get('{run}').values()].filter((e) => e.commit)"
            ".map((e) => [e.commit.version, e.commit.step, e.commit.loss])"
        )
        # The coordinator keeps fewer old entries of a long run than a page that has seen them all.
        shown = {version: (step, loss) for version, step, loss in page}
        self.assertEqual({version: shown[version] for version in losses}, losses)
        for version, (step, loss) in watched.items():
            self.assertEqual(shown[version][0], step)
            self.assertAlmostEqual(shown[version][1], loss, places=6)
        accuracies = {u["run"]["test"]["step"]: u["run"]["test"]["accuracy"] for u in updates if u["run"]["test"]}
        self.assertGreater(len(accuracies), 1)
        self.assertEqual({s: tests[s] for s in accuracies}, accuracies)
        # What the charts draw is what the page has.
        self.open(f"run/{run}")
        self.wait("document.querySelectorAll('.card details').length >= 7", "no charts")
        self.script("document.querySelectorAll('.card')[1].querySelector('details').open = true")
        rows = wait_for(
            lambda: self.script("[...document.querySelectorAll('.card')[1].querySelectorAll('details tbody tr')]"
                                ".map((row) => [...row.cells].map((cell) => cell.textContent))"),
            "no table",
        )
        self.assertEqual(
            {int(step.replace(",", "")): float(accuracy) for step, accuracy in rows},
            {step: round(accuracy, 4) for step, accuracy in tests.items()},
        )

    def check_pages(self, run):
        for page, heading in (
            ("", "Overview"),
            (f"run/{run}", "walk"),
            (f"run/{run}?x=time", "walk"),
            (f"run/{run}/rounds", "Rounds of walk"),
            (f"run/{run}/groups", "Groups of walk"),
            ("members", "Members"),
            ("events", "Events"),
            ("about", "About"),
        ):
            self.open(page)
            self.wait(f"document.querySelector('#main h1')?.textContent === '{heading}'", page)
            time.sleep(0.4)
            for width in (360, 1440):
                self.driver.execute_cdp_cmd(
                    "Emulation.setDeviceMetricsOverride",
                    {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
                )
                time.sleep(0.3)
                self.assertLessEqual(
                    self.script("document.documentElement.scrollWidth"), width, f"{page} is wider than {width}"
                )
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.screenshot({"": "overview"}.get(page, re.sub(r"\W+", "-", page.replace(run, "run"))))

    def check_hostile_names(self):
        """Names from outside are text: nothing of them is interpreted."""
        self.driver.execute_async_script(
            "const [text, done] = arguments; import('/app.js').then(({ data, render }) => {"
            "data.events.set(1e9, { number: 1e9, time_ms: 0, kind: text, run: text, text });"
            "location.hash = '#/events'; render(); setTimeout(done, 500); });",
            HOSTILE,
        )
        self.assertIn(HOSTILE, self.text())
        self.assertEqual(self.script("document.querySelectorAll('#main img').length"), 0)

    def check_requests(self):
        errors = [
            entry
            for entry in self.driver.get_log("browser")
            # While the coordinator is away, requests fail.
            if "ERR_CONNECTION_REFUSED" not in entry["message"]
            and "ERR_INCOMPLETE_CHUNKED_ENCODING" not in entry["message"]
            and "ERR_EMPTY_RESPONSE" not in entry["message"]
            and "favicon" not in entry["message"]
        ]
        self.assertEqual(errors, [])
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = urllib.parse.urlsplit(message["params"]["request"]["url"])
                if address.scheme not in ("chrome", "data"):  # of the browser's first, empty page
                    hosts.add(address.netloc)
        self.assertEqual(hosts, {self.cluster.dashboard})


VIEWERS = """
import selectors, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
streams = selectors.DefaultSelector()
for _ in range(count):
    viewer = socket.create_connection((host, port))
    viewer.sendall(b"GET /api/v1/stream HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    streams.register(viewer, selectors.EVENT_READ)
print("connected", flush=True)
while True:
    for key, _ in streams.select():
        key.fileobj.recv(65536)
"""


class ServerTest(unittest.TestCase):
    """Rules of the server that need no browser."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(cls.folder.name, PROGRAMS)
        cls.cluster.start_coordinator()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()
        cls.folder.cleanup()

    def get(self, path, **headers):
        return get(self.cluster.dashboard, path, headers)

    def test_first_load_is_small(self):
        total = 0
        page = self.get("/")[2].decode()
        modules = ("format.js", "pages.js", "charts.js", "timeline.js")
        names = ["", *re.findall(r'(?:href|src)="/([\w.]+)"', page), *modules]
        self.assertEqual(len(names), 9)
        for name in names:
            status, headers, body = self.get(f"/{name}", **{"Accept-Encoding": "gzip"})
            self.assertEqual((status, headers["Content-Encoding"]), (200, "gzip"), name)
            total += len(body)
            tag = headers["ETag"]
            self.assertEqual(self.get(f"/{name}", **{"If-None-Match": tag})[::2], (304, b""))
        print(f"first load: {total} bytes", flush=True)
        self.assertLess(total, MAX_FIRST_LOAD)

    def test_policy(self):
        for path in ("/", "/app.js", "/api/v1/overview", "/nothing"):
            headers = self.get(path)[1]
            policy = headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")

    def test_names_of_other_hosts_are_refused(self):
        port = self.cluster.dashboard.rpartition(":")[2]
        for host, status in (
            (f"127.0.0.1:{port}", 200),
            (f"localhost:{port}", 200),
            ("localhost", 200),
            ("example.org", 421),
            (f"127.0.0.1.example.org:{port}", 421),
            ("", 421),
        ):
            self.assertEqual(self.get("/", Host=host)[0], status, host)

    def test_unknown_things(self):
        for path in ("/api/v1/nothing", "/api/v1/runs/run-9/history", "/api/v1/runs/run-9/groups", "/../etc/passwd"):
            self.assertEqual(self.get(path)[0], 404, path)
        self.assertIn("error", json.loads(self.get("/api/v1/runs/run-9/history")[2]))

    def test_only_reads(self):
        import http.client

        for method in ("POST", "PUT", "DELETE"):
            connection = http.client.HTTPConnection(self.cluster.dashboard, timeout=10)
            connection.request(method, "/api/v1/overview")
            self.assertEqual(connection.getresponse().status, 405)
            connection.close()

    def test_refuses_to_listen_beyond_loopback(self):
        store = f"--store={self.folder.name}/other.db"
        flags = ["--listen=127.0.0.1:0", store, "--dashboard-listen=0.0.0.0:0"]
        tls = f"{self.folder.name}/ca"
        for arguments in (["init", "--ca", tls], ["issue", "coordinator", "main", "--ca", tls, "--out", f"{tls}/main"]):
            subprocess.run([PROGRAMS / "cadre", "certs", *arguments], check=True, capture_output=True)
        result = subprocess.run(
            [PROGRAMS / "cadre-coordinator", *flags, f"--tls={tls}/main"], capture_output=True, text=True, timeout=20
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("the dashboard has no authentication", result.stderr)


if __name__ == "__main__":
    unittest.main()
