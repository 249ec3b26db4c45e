#!/usr/bin/env python3
"""Accuracy and traffic of runs whose groups communicate rarely and in few bits.

Each experiment trains one network with several settings of averaging, by `cadre local` with one worker of one thread
in each group. The baseline `synchronous` is one group with as many workers and the same samples in every step: the
same optimizer, without averages. `synchronous, scaled rate` multiplies the learning rate by the number of groups, as
is usual for batches that are so much larger; `synchronous, bf16` computes in bf16. Runs go one after the other, the
first seed of all selected settings first. Prints one JSON line for each run and appends it to --output. Runs that are
in this file already are not repeated, so an interrupted sweep continues:

    bench/low_traffic.py --bin build/bin --output low-traffic.jsonl fashion-2 fashion-4/synchronous --seeds 1,2,3
    bench/low_traffic.py --summarize low-traffic.jsonl

Accuracy is that of the last version on the test split. The traffic factor compares all bytes between groups and
aggregators, with headers, with 8 bytes for each parameter and step of each group. --summarize prints Markdown tables;
differences to the baseline are means over the seeds that both have.
"""
import pathlib
import statistics
import sys
from typing import NamedTuple

from runner import numbers, parser, read_lines, report, train_local

RUN_FILES = pathlib.Path(__file__).with_name("low_traffic")
BASELINE = "synchronous"
SCALED_BASELINE = "synchronous, scaled rate"
BF16_BASELINE = "synchronous, bf16"
BASELINES = (BASELINE, SCALED_BASELINE, BF16_BASELINE)
# Other programs may use the machine; a worker that gets little time for a while has not failed.
FLAGS = ("--threads", "1", "--lease-ms", "60000", "--quiet")

NESTEROV = "nesterov {}"
SHORTER_NESTEROV = "nesterov { momentum: 0.5 }"


def averaging(every, outer="", up="FP32", down=None, more=""):
    """Text of `averaging`. `up` and `down` (by default `up`) are names of codecs, then other fields of the coding."""
    fields = [f"every_steps: {every}"]
    if outer:
        fields.append(f"outer {{ {outer} }}")
    fields += [f"{name} {{ codec: CODEC_{coding} }}" for name, coding in (("up", up), ("down", down or up))]
    return " ".join(fields + [more]).strip()


def topk(keep):
    return f"TOPK keep: {keep}"


class Experiment(NamedTuple):
    run_file: str
    groups: int
    # Learning rate, and how it changes over the steps.
    rate: float
    schedule: str
    # Samples in a step of each group.
    batch: int
    stop: str
    # Text of `averaging` by name.
    settings: dict
    # Text of the run that differs between machines, with the names of options in braces.
    local: str = ""


TOKENS = 'data {{ token_files {{ train: "{tokens}/train.tokens" test: "{tokens}/test.tokens" bytes_per_token: 1 }} }}'

FASHION_2 = {
    "stat2, H=96, Nesterov": averaging(96, NESTEROV, "STAT2"),
    "e3m0, H=128, Nesterov": averaging(128, NESTEROV, "E3M0"),
    "stat2, H=192, Nesterov": averaging(192, NESTEROV, "STAT2"),
}
FASHION_4 = {
    "stat2, H=64, Nesterov": averaging(64, NESTEROV, "STAT2"),
}
RESNET = {
    "stat2, H=48, Nesterov": averaging(48, NESTEROV, "STAT2"),
    "stat2, H=36, Nesterov 0.7/0.5": averaging(36, SHORTER_NESTEROV, "STAT2"),
    "e3m0, H=64, Nesterov 0.7/0.5": averaging(64, SHORTER_NESTEROV, "E3M0"),
}
GPT = {
    "topk 64, H=48, mean": averaging(48, "", topk(64)),
    "stat2, H=256, Nesterov": averaging(256, NESTEROV, "STAT2"),
    "stat2, H=64, Nesterov": averaging(64, NESTEROV, "STAT2"),
    "fp32, H=64, Nesterov": averaging(64, NESTEROV),
    "topk 64 up, fp32 down, H=48, mean": averaging(48, "", topk(64), "FP32"),
}
# One change at a time to two bits, H = 64 and Nesterov's momentum, except for the last rows.
ABLATION = {
    "stat2, H=64, Nesterov 0.7/0.9": averaging(64, NESTEROV, "STAT2"),
    "without error feedback": averaging(64, NESTEROV, "STAT2 error_feedback: 0", "STAT2"),
    "mean": averaging(64, "", "STAT2"),
    "Nesterov 0.7/0.5": averaging(64, SHORTER_NESTEROV, "STAT2"),
    "fp32": averaging(64, NESTEROV),
    "bf16": averaging(64, NESTEROV, "BF16"),
    "int8": averaging(64, NESTEROV, "INT8"),
    "e3m0": averaging(64, NESTEROV, "E3M0"),
    "topk 64": averaging(64, NESTEROV, topk(64)),
    "overlap 4": averaging(64, NESTEROV, "STAT2", more="overlap { steps: 4 }"),
    "overlap 16": averaging(64, NESTEROV, "STAT2", more="overlap { steps: 16 }"),
    "overlap 16, blend 0.5": averaging(64, NESTEROV, "STAT2", more="overlap { steps: 16 blend: 0.5 }"),
    "topk 64, H=16, mean": averaging(16, "", topk(64)),
    "topk 64, H=16, mean, without error feedback": averaging(16, "", topk(64) + " error_feedback: 0", topk(64)),
}
SGD_SCHEDULE = "warmup_steps: 100 cosine { final_fraction: 0.01 }"
ADAM_SCHEDULE = "warmup_steps: 100 cosine { final_fraction: 0.1 }"
EXPERIMENTS = {
    "fashion-2": Experiment("fashion_mnist", 2, 0.02, SGD_SCHEDULE, 64, "epochs: 6", FASHION_2),
    "fashion-4": Experiment("fashion_mnist", 4, 0.02, SGD_SCHEDULE, 64, "epochs: 6", FASHION_4),
    "fashion-ablation": Experiment("fashion_mnist", 2, 0.02, SGD_SCHEDULE, 64, "epochs: 3", ABLATION),
    "resnet-2": Experiment("resnet18", 2, 0.05, SGD_SCHEDULE, 64, "epochs: 3", RESNET),
    "gpt-2": Experiment("gpt", 2, 1e-3, ADAM_SCHEDULE, 8, "steps: 5000", GPT, TOKENS),
}


class Run(NamedTuple):
    experiment: str
    setting: str
    seed: int

    def key(self):
        """What distinguishes the run from others, also from those of other versions of this program."""
        e = EXPERIMENTS[self.experiment]
        return {"experiment": self.experiment, "setting": self.setting, "seed": self.seed, "groups": e.groups,
                "batch": e.batch, "rate": e.rate * (e.groups if self.setting == SCALED_BASELINE else 1),
                "schedule": e.schedule, "stop": e.stop, "averaging": e.settings.get(self.setting, "")}

    def spec(self, **options):
        """Text of the run file; `options` are those that `Experiment.local` names."""
        e, key = EXPERIMENTS[self.experiment], self.key()
        samples, cluster = e.batch, f"groups: {e.groups}"
        if not key["averaging"]:
            samples, cluster = e.groups * e.batch, f"ranks_per_group: {e.groups}"
        return "\n".join([
            (RUN_FILES / f"{e.run_file}.textproto").read_text() + e.local.format(**options),
            f'name: "{self.experiment}"',
            f"batch_per_group: {samples}",
            f"schedule {{ base_rate: {key['rate']} {e.schedule} }}",
            f"averaging {{ {key['averaging']} }}",
            f"precision: {'BF16' if self.setting == BF16_BASELINE else 'FP32'}",
            f"cluster {{ {cluster} keep_plan: true }}",
            f"stop {{ {e.stop} }}",
            "evaluation { every_epochs: 1000 }",
            f"seed: {self.seed}", ""])


def selected(words):
    """(experiment, setting) of words like "gpt-2" or "gpt-2/synchronous"; all if there are none."""
    for word in words or EXPERIMENTS:
        experiment, _, setting = word.partition("/")
        if experiment not in EXPERIMENTS:
            sys.exit(f"unknown experiment '{experiment}'; there are {', '.join(EXPERIMENTS)}")
        settings = [*BASELINES, *EXPERIMENTS[experiment].settings]
        if setting and setting not in settings:
            sys.exit(f"unknown setting '{setting}' of {experiment}; there are: {'; '.join(settings)}")
        for each in [setting] if setting else settings:
            yield experiment, each


def measure(args):
    recorded = read_lines(args.output)
    pairs = list(dict.fromkeys(selected(args.select)))
    for seed in args.seeds:
        for pair in pairs:
            run = Run(*pair, seed)
            if any(run.key().items() <= line.items() for line in recorded):
                continue
            what = f"{run.experiment}, {run.setting}, seed {run.seed}"
            result, _ = train_local(args, run.spec(tokens=args.tokens), what, *FLAGS)
            report(args, "low_traffic", **run.key(), parameters=result["parameters"], steps=result["steps"],
                   rounds=result["rounds_committed"], accuracy=result["test_accuracy"], loss=result["test_loss"],
                   **{name: result[name] for name in ("traffic_factor", "bytes_up", "bytes_down", "seconds")})


def spread(values, digits):
    """Mean and range."""
    texts = [f"{value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values))]
    return texts[0] if len(values) == 1 else "{} ({} to {})".format(*texts)


def difference(lines, baseline, field):
    """Mean difference and mean value of the baseline over common seeds, or None."""
    common = lines.keys() & baseline.keys()
    if not common or lines is baseline:
        return None
    mean = statistics.mean(baseline[seed][field] for seed in common)
    return statistics.mean(lines[seed][field] for seed in common) - mean, mean


def table(experiment, settings):
    """Lines of the Markdown table of one experiment. `settings`: {name: {seed: line}}."""
    baseline = settings.get(BASELINE, {})
    some = next(iter(next(iter(settings.values())).values()))
    yield f"{experiment}: {some['groups']} groups, {some['parameters']:,} parameters, T = {some['steps']:,}"
    yield ""
    yield "| averaging | seeds | traffic factor | accuracy, % | difference | loss | difference |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, lines in settings.items():
        columns = {field: [line[field] for line in lines.values()] for field in ("accuracy", "loss", "traffic_factor")}
        points = difference(lines, baseline, "accuracy")
        loss = difference(lines, baseline, "loss")
        yield " | ".join([
            f"| {name}", str(len(lines)),
            "-" if name in BASELINES else f"{statistics.mean(columns['traffic_factor']):,.0f}",
            spread([100 * value for value in columns["accuracy"]], 2),
            "-" if points is None else f"{100 * points[0]:+.2f}",
            spread(columns["loss"], 4),
            "- |" if loss is None else f"{100 * loss[0] / loss[1]:+.2f} % |"])


def summarize(lines):
    experiments = {}
    for line in lines:
        settings = experiments.setdefault(line["experiment"], {})
        settings.setdefault(line["setting"], {})[line["seed"]] = line
    return "\n\n".join("\n".join(table(name, settings)) for name, settings in experiments.items())


def main():
    p = parser(__doc__)
    p.add_argument("select", nargs="*", metavar="EXPERIMENT[/SETTING]",
                   help=f"of {', '.join(EXPERIMENTS)}; default: all")
    p.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="separated by commas")
    p.add_argument("--tokens", default="tokens", help="folder of the files that bench/text_tokens.py makes")
    p.add_argument("--summarize", metavar="FILE", help="print the tables of the lines in FILE, and train nothing")
    args = p.parse_args()
    if args.summarize:
        print(summarize(read_lines(args.summarize)))
    else:
        measure(args)


if __name__ == "__main__":
    main()
