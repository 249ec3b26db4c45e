"""Command line and the course of a run."""
import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from chaos_rig import faults, report
from chaos_rig.cluster import COORDINATOR, LINK_RATE, Cluster, member_names, processes_of
from chaos_rig.history import History, Observer
from chaos_rig.replay import Archive, commits, replay
from hosts import Hosts
from runner import cpu_model

# Set in the process that has namespaces of its own: its folder.
INSIDE = "CADRE_CHAOS_INSIDE"
PREFIX = "cadre-chaos-"
PR_SET_PDEATHSIG = 1
# A recovery that takes longer has failed.
RECOVERY_SECONDS = 60


def parse(description, arguments):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="build/bin", help="folder of the programs")
    p.add_argument("--minutes", type=float, default=10, help="time with faults")
    p.add_argument("--reference-minutes", type=float, default=2, help="time without faults before it")
    p.add_argument("--faults-per-hour", type=float, default=85)
    p.add_argument("--kinds", default="", help="only these kinds of faults, such as kill_worker,stop_coordinator")
    p.add_argument("--overlap", action="store_true", help="faults may begin before the last one has ended")
    p.add_argument("--recovery", choices=("worker", "aggregator", "coordinator", "rolling"), default="",
                   help="only kill this kind of member, and wait for the recovery each time; rolling: terminate every"
                        " member once and start it again")
    p.add_argument("--times", type=int, default=20, help="kills with --recovery")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--restart-s", type=float, default=1, help="seconds from a kill to the start of a new process")
    p.add_argument("--groups", type=int, default=3)
    p.add_argument("--ranks", type=int, default=2, help="workers of a group")
    p.add_argument("--min-ranks", type=int, default=0,
                   help="workers with which a group may go on; default: all, since a group of one worker needs no link"
                        " and would be faster than the reference")
    p.add_argument("--spares", type=int, default=None, help="idle workers; default: 1, or 0 with --recovery")
    p.add_argument("--aggregators", type=int, default=2)
    p.add_argument("--width", type=int, default=256, help="size of the model")
    p.add_argument("--every-steps", type=int, default=20, help="steps of a round")
    p.add_argument("--quorum", type=int, default=0, help="0: all live groups")
    p.add_argument("--grace-ms", type=int, default=1000, help="with --quorum")
    p.add_argument("--max-solo-steps", type=int, default=0,
                   help="steps that a group trains beyond its boundary while the coordinator is unreachable")
    p.add_argument("--lease-ms", type=int, default=4000)
    p.add_argument("--keep", default="", help="new folder for logs and history, which is not removed")
    p.add_argument("--no-namespaces", action="store_true", help="all processes on loopback: no faults of the network")
    p.add_argument("--clean", action="store_true", help="only remove what killed runs of this script left behind")
    # Dashes or underscores.
    args = p.parse_args([a.replace("_", "-") if a.startswith("--") and "=" not in a else a for a in arguments])
    if args.spares is None:
        args.spares = 0 if args.recovery else 1
    args.bin = os.path.abspath(args.bin)
    return args


def clean():
    """Removes the folders of runs whose process is gone, and their processes. Namespaces, links and mounts are gone
    with it."""
    for name in os.listdir(tempfile.gettempdir()):
        path = os.path.join(tempfile.gettempdir(), name)
        if not name.startswith(PREFIX) or not os.path.isdir(path):
            continue
        with open(os.path.join(path, "lock"), "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            for pid in processes_of(path):
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(path, ignore_errors=True)
            print(f"removed {path}", file=sys.stderr)


def isolate(folder):
    """Runs this script again in the folder, with mount, network and process namespaces of its own. They end with this
    process, also if it is killed, and everything in them: processes, hosts, links, mounts. Needs root or user
    namespaces."""
    command = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--map-root-user"]
    libc = ctypes.CDLL(None)
    return subprocess.run([*command, sys.executable, *sys.argv], env={**os.environ, INSIDE: folder}, check=False,
                          preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)).returncode


def main(description):
    args = parse(description, sys.argv[1:])
    if args.clean:
        return clean()
    with contextlib.ExitStack() as stack:
        folder = os.environ.get(INSIDE)
        if folder is None:
            folder = os.path.abspath(args.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
            os.makedirs(folder, exist_ok=True)
            fcntl.flock(stack.enter_context(open(os.path.join(folder, "lock"), "w", encoding="ascii")), fcntl.LOCK_EX)
            if not args.no_namespaces:
                return isolate(folder)
        hosts = None
        if not args.no_namespaces:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
            hosts = stack.enter_context(Hosts(member_names(args), LINK_RATE))
        result = run(args, folder, hosts)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def run(args, folder, hosts):
    history = History(os.path.join(folder, "history.jsonl"))
    cluster = Cluster(args, folder, history, hosts)
    archive = observer = None
    times = []
    failures = []
    try:
        cluster.start_all()
        cluster.submit()
        folders = {m.name: os.path.join(cluster.data(m), cluster.run) for m in cluster.of_role("aggregator")}
        wait(lambda: all(os.path.isdir(path) for path in folders.values()), 30, "the shards are open")
        archive = Archive(folders, os.path.join(folder, "archive"), history)
        observer = Observer(cluster, history)
        wait_whole(args, history, 2)
        times.append(history.now())
        progress(f"{args.reference_minutes:g} minutes without faults")
        time.sleep(args.reference_minutes * 60)
        times.append(history.now())
        if args.recovery:
            recover(cluster, args)
        else:
            progress(f"{args.minutes:g} minutes with faults")
            faults.run_schedule(cluster, args, args.minutes * 60)
        times.append(history.now())
        wait_whole(args, history, 1)
    except TimeoutError as error:
        # Before the faults there is nothing to report.
        if len(times) < 2:
            raise
        failures.append(str(error))
    finally:
        if observer:
            observer.stop()
        cluster.stop_all()
        if archive:
            archive.stop()
    progress("replay")
    times = [*times, history.now()][:3]
    return result_of(args, history, cluster, archive, times, failures)


def recover(cluster, args):
    """Kills, or restarts, members one after the other, at random times of a round."""
    rng = random.Random(args.seed)
    rolling = [(f"restart_{member.role}", member) for member in cluster.members.values()]
    order = rolling if args.recovery == "rolling" else [(f"kill_{args.recovery}", None)] * args.times
    for number, (name, member) in enumerate(order):
        progress(f"{name} {number + 1} of {len(order)}")
        time.sleep(rng.uniform(0, 3))
        faults.inject(cluster, name, rng, args.restart_s, member)
        wait_whole(args, cluster.history, 3)


def wait_whole(args, history, more_commits):
    """Waits until all groups train with all ranks, and for commits after that."""
    begin = history.now()
    wait(lambda: history.samples and history.samples[-1].t > begin and history.samples[-1].is_whole(args),
         RECOVERY_SECONDS, "all groups train with all ranks")
    enough = max(history.commits, default=0) + more_commits
    wait(lambda: max(history.commits, default=0) >= enough, RECOVERY_SECONDS, "the next commit")


def wait(predicate, seconds, what):
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def result_of(args, history, cluster, archive, times, failures):
    begin, middle, end = times
    records = commits(os.path.join(cluster.members[COORDINATOR].folder, "store.db"), cluster.run)
    checker = report.Checker(args, history, records)
    rate, samples_rate = checker.reference(begin, middle)
    injected = [checker.fault(fault, until) for fault, until in
                zip(history.faults, [*(fault["begin"] for fault in history.faults[1:]), history.now()])
                if fault["end"] is not None]
    replayed = replay(archive.target, records)
    violations = checker.violations() + failures
    busy = sum(os.times()[:4])
    result = {
        "bench": "chaos",
        "cpu": cpu_model(),
        "ok": bool(replayed["replay_equal"]) and not violations,
        "step_efficiency": round(checker.steps(middle, end) / (rate * (end - middle)), 4),
        "sample_efficiency": round(checker.samples(middle, end) / (samples_rate * (end - middle)), 4),
        "faults": len(injected),
        "next_commit_s": report.median(fault["next_commit_s"] for fault in injected),
        "rejoin_s": report.median(fault.get("rejoin_s") for fault in injected),
        "stalled_groups_s": checker.stalled_seconds(middle, end),
        **replayed,
        "staged_again": archive.staged_again,
        "reference": {"minutes": args.reference_minutes, "steps_per_second": round(rate, 3),
                      "round_seconds": round(checker.round_seconds, 3),
                      "stalled_groups_s": checker.stalled_seconds(begin, middle)},
        "minutes": round((end - middle) / 60, 2),
        "commits": sum(middle <= t <= end for t, _, _ in checker.commits),
        "kinds": report.by_kind(injected),
        "violations": violations,
        "ended_by_itself": [event for event in history.events if event["event"] == "ended_by_itself"],
        "not_injected": [event for event in history.events if event["event"] == "not_injected"],
        "memory": checker.memory(),
        "counters": history.samples[-1].counters if history.samples else {},
        "cores_used": round(busy / history.now(), 2),
        "configuration": {key: value for key, value in vars(args).items() if key not in ("clean", "keep", "bin")},
        "injected": injected,
    }
    if args.recovery:
        keys = ("late_s", "next_commit_s", "rejoin_s", "commit_after_restart_s", "whole_s", "reformed")
        result["recovery"] = {key: report.summary(fault.get(key) for fault in injected) for key in keys
                              if any(key in fault for fault in injected)}
    return result


def progress(text):
    print(text, file=sys.stderr, flush=True)
