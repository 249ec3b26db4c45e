// The table of verbs. A verb's row is all that the program knows about it; see cli/verb.h.
//
// Each function below returns one row, or flags that several rows share. Ranges of values are as
// narrow as the meaning of a flag permits, so that most errors are found when the command line is
// parsed.
#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/help.h"
#include "cli/verb.h"
#include "plan/search/plan_problem.h"
#include "proto/schema_hash.h"

namespace cadre {
namespace {

using enum ValueKind;

// --- Flags that several verbs have ---

Flag Mesh() {
  return {"mesh", kText, "AXES",
          "the group's mesh, such as data=4,space=1,model=2, in place of the planner's choice; "
          "sets the ranks of a group to the product"};
}

Flag Layer() {
  return {"layer", kText, "PINS",
          "how layers are split, such as fc6=model,conv1=data, in place of the planner's choice: "
          "data, model, model-in or domain"};
}

Flag ModelRanks() {
  return {"model-ranks", kCount, "N", "ranks of a group that split the layers' weights"};
}

Flag SpaceRanks() {
  return {"space-ranks", kCount, "N", "ranks of a group that split the images' rows"};
}

Flag Collectives() {
  return {"collectives",
          kChoice,
          "POLICY",
          "how collective algorithms are chosen; auto decides by size and measured links, paper by "
          "kind of layer, native is NCCL (needs GPUs)",
          {"auto", "ring", "butterfly", "halving-doubling", "paper", "native"}};
}

Flag Threads() {
  return Flag{"threads", kCount, "N", "compute threads of each worker"}.Fallback("1").Min(1);
}

Flag Output(absl::string_view help) { return Flag{"output", kFile, "FILE", help}.Letter('O'); }

// The flags of 'cadre local' and 'cadre run' that replace values of the run file.
std::vector<Flag> RunFlags() {
  return {
      Flag{"groups", kCount, "G", "groups that train in parallel and average their models"}.Min(1),
      Flag{"ranks", kCount, "R", "workers of each group"}.Min(1),
      {"aggregators", kCount, "A",
       "aggregators that share the averaging; 0 only if the run never averages"},
      ModelRanks(),
      SpaceRanks(),
      Mesh(),
      Layer(),
      Collectives(),
      {"overlap",
       kChoice,
       "on|off",
       "whether gradients and weights are transferred while layers compute",
       {"on", "off"}},
      {"device",
       kText,
       "DEVICE",
       "what workers compute on: cpu, cuda or, for 'cadre local', cuda:N (all its workers share "
       "that GPU)",
       {"cpu", "cuda"}},
      {"precision",
       kChoice,
       "P",
       "arithmetic of products; tf32 and bf16 need GPUs",
       {"fp32", "tf32", "bf16"}},
      {"from", kFolder, "DIR",
       "checkpoint to start from, or a directory of checkpoints (its newest); for 'cadre run' a "
       "path on the machines of all workers and aggregators"},
      {"checkpoint", kFolder, "DIR",
       "directory that receives the run's checkpoints; each run needs its own"}};
}

// The flags of one verb, followed by flags that it shares with other verbs.
std::vector<Flag> With(std::vector<Flag> flags, const std::vector<Flag>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<absl::string_view> StrategyNames() {
  std::vector<absl::string_view> names;
  for (const Strategy strategy : AllStrategies()) names.push_back(StrategyName(strategy));
  return names;
}

const Argument kRunFile{.name = "RUN.textproto", .kind = kModel};
const Argument kModelArgument{.name = "RUN.textproto|MODEL", .kind = kModel};
const Argument kRun{.name = "RUN"};
const Argument kOptionalRun{.name = "RUN", .optional = true};

// --- Verbs ---

// Like other verbs that start processes, 'cadre local' handles interrupts itself to stop them.
Verb Local() {
  return {
      .name = "local",
      .arguments = {kRunFile},
      .flags = With(RunFlags(),
                    {Threads(),
                     {"dir", kFolder, "DIR",
                      "keep store, data and logs in DIR; without it they are in a temporary "
                      "directory that is removed unless the run fails"},
                     Flag{"restart", kSwitch, "",
                          "end the run when a process dies; without it the process is restarted"}
                         .Fallback("true"),
                     Flag{"lease-ms", kCount, "N",
                          "milliseconds without a heartbeat after which a worker counts as lost"}
                         .Fallback("5000")}),
      .brief = "train on this machine: start a cluster, follow the run, stop the cluster",
      .text =
          R"(Checks the run file and the data, then starts a coordinator, A aggregators and G times R workers as
separate processes on free loopback ports, submits the run, reports its progress on stderr and prints
a summary on stdout. It stops every process when the run ends or on Ctrl-C. A process that dies is
restarted, and the run continues. Flags replace values of the run file.

With -o json the last line of stdout is one JSON object. The exit code is 0 only when the run reached
its stop rule.
)",
      .examples = R"(  cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2
  cadre local deploy/demo.textproto --groups 1 --ranks 4 --space-ranks 2 --model-ranks 2
  cadre local deploy/demo.textproto -o json | tail -n 1 | jq .test_accuracy
)",
      .handles_interrupts = true,
      .run = RunLocal};
}

Verb Run() {
  return {
      .name = "run",
      .arguments = {kRunFile},
      .flags = With({{"detach", kSwitch, "", "print the run's id and exit"}}, RunFlags()),
      .brief = "submit a run to a coordinator and follow it",
      .text =
          R"(The cluster's workers train the run as soon as enough of them are idle. Flags replace what the run
file says. Ctrl-C stops following; the run continues. The exit code is 0 only when the run reached its
stop rule.
)",
      .examples = R"(  cadre run deploy/demo.textproto --coordinator 10.0.0.5:7000
  id=$(cadre run deploy/demo.textproto --detach) && cadre wait "$id" --timeout 30m
)",
      .run = SubmitRun};
}

// Larger numbers of workers or batches are assumed to be typing errors.
constexpr uint32_t kMaxPlannedWorkers = 100'000;
constexpr uint32_t kMaxPlannedBatch = 1 << 24;
// Within these bounds sums of products of seconds and rates stay finite.
constexpr double kMaxSeconds = 1e12;
constexpr double kMinRate = 1e-12;
constexpr double kMaxRate = 1e30;

// The flags of 'cadre plan', in the order of its help.
std::vector<Flag> PlanFlags() {
  return {
      Flag{"workers", kCount, "P",
           "workers of the group, up to 100,000; required without --placement"}
          .Min(1)
          .Max(kMaxPlannedWorkers),
      Flag{"batch", kCount, "B", "samples per step of the group"}.Min(1).Max(kMaxPlannedBatch),
      Flag{"alpha", kNumber, "S", "latency of a message in seconds, such as 50e-6"}.Range(
          0, kMaxSeconds),
      Flag{"bandwidth", kNumber, "B",
           "bytes per second of a worker's link in each direction: 10 Gbit/s is 1.25e9"}
          .Range(kMinRate, kMaxRate),
      Flag{"gamma", kNumber, "S", "seconds to add one byte to another"}.Range(0, kMaxSeconds),
      Flag{"flops", kNumber, "F",
           "floating-point operations per second of a worker: predicts the time of a step, and how "
           "much communication overlaps with computing"}
          .Range(kMinRate, kMaxRate),
      {"profile", kFile, "FILE",
       "a cluster profile written by 'cadre probe': links, speeds, memory"},
      Flag{"memory", kCount, "BYTES", "memory of a worker; plans that need more are refused"}
          .Min(1)
          .Max(std::numeric_limits<uint64_t>::max()),
      {"strategy", kText, "NAME",
       "how layers may be split: auto (the default) searches all ways; the others are the papers'",
       StrategyNames()},
      {"compare",
       kText,
       "NAMES",
       "compare strategies in a table: names with commas, such as "
       "data,model,uniform-grid,hybrid,auto, or all",
       {"all"}},
      Mesh(),
      Layer(),
      {"epochs", kFile, "FILE",
       "a table written by 'cadre measure-epochs': predicts the time to its target accuracy, and "
       "whether a smaller batch on a split model reaches it sooner"},
      Flag{"samples", kCount, "N", "samples of an epoch, if the run file does not imply them"}
          .Min(1)
          .Max(std::numeric_limits<uint64_t>::max()),
      Flag{"groups", kCount, "G",
           "also choose the number of groups, up to G, and the steps between averages; each group "
           "takes steps of --batch. Implied by --profile with --epochs"}
          .Min(1),
      {"sensitivity", kSwitch, "",
       "also search what would change the answer: bandwidth, batch, memory. By default only if the "
       "search is short; never with --no-sensitivity"},
      Collectives(),
      Flag{"bucket-elements", kCount, "N",
           "elements at which a bucket is full; 1 gives each layer its own bucket, 0 sets no "
           "limit; by default the link decides"}
          .Max(std::numeric_limits<uint64_t>::max()),
      ModelRanks(),
      SpaceRanks(),
      {"placement", kFile, "FILE",
       "place the operators of this graph on devices, instead of planning a run"},
      Flag{"solver-seconds", kNumber, "S",
           "with --placement: stop the solver after S seconds and take the best found"}
          .Fallback("10")
          .Range(1e-3, 86'400)};
}

Verb PlanVerb() {
  return {
      .name = "plan",
      .arguments = {{.name = "RUN.textproto|MODEL", .kind = kModel, .optional = true}},
      .flags = PlanFlags(),
      .brief = "show how a group of workers would train a model, and the cost; needs no cluster",
      .text =
          R"(Searches the fastest way for a group to train a model: the mesh of its ranks, how each layer is
split over it, what moves between layers, and the buckets of parameters whose gradients are reduced
together. For each layer it shows computation, communication and memory, and the best alternative.
MODEL is a model of the zoo, such as alexnet. Without a link no time can be predicted, and the plan is
the one of a group that has measured nothing.

Strategies other than auto use the papers' formulas, for elements and seconds alike; the figures of
Cadre's engine are shown for comparison. The formulas include neither overlap nor pinned layers; with
these, --compare uses the engine's figures alone.

"sums exactly" (in JSON: exact) states that no other split of the layers, on any mesh, has a smaller
sum of the times of layers and the moves between them. With --flops or --profile communication
overlaps with computing, a step is not such a sum, and the result is the best that the search met.

A bucket's gradients are summed by a reduce-scatter and its weights gathered by an all-gather;
COMMUNICATION is their sum without overlap. ALL-REDUCE ONLY is the time of the same buckets if
nothing were sharded, which is how papers count.

--placement places the operators of a graph on devices such that the last one ends as early as
possible: by an integer program where the graph is small enough (about 16 operators take a second or
two), else by list scheduling; either way it reports the gap to a lower bound. A graph is a text file of
op { name: "a" seconds: 2 memory_bytes: 0 }, edge { from: "a" to: "b" bytes: 8 },
device { name: "gpu0" memory_bytes: 0 }, switch: "s" and link { from: "gpu0" to: "s" alpha: 1e-6
bandwidth: 1e9 }; see deploy/diamond.textproto and proto/cadre/v1/placement.proto.
)",
      .examples =
          R"(  cadre plan deploy/demo.textproto --workers 4
  cadre plan --placement deploy/diamond.textproto -o json | jq '.makespan, .placement'
  cadre plan alexnet --workers 512 --batch 2048 --alpha 2e-6 --bandwidth 6e9 --compare all
  cadre plan alexnet --workers 512 --batch 2048 --alpha 2e-6 --bandwidth 6e9 \
    --strategy uniform-grid --mesh data=128,model=4 -o json | jq .words_per_rank
  cadre plan vgg16 --workers 64 --profile rack.profile -o json | jq '.step_seconds, .mesh'
  cadre plan alexnet --workers 8 --model-ranks 1 --alpha 50e-6 --bandwidth 1.25e9 \
    --bucket-elements 1 -o json | jq .policies
)",
      .run = ShowPlan};
}

Verb Probe() {
  return {
      .name = "probe",
      .arguments = {kModelArgument},
      .flags =
          {Flag{"workers", kCount, "N", "worker processes on this machine"}
               .Fallback("1")
               .Min(1)
               .Max(1024),
           Threads(),
           {"batch", kCount, "B", "samples per step, in place of the run file's"},
           {"peers", kText, "H:P,...",
            "host:port of every host in the order of ranks, this one's included: free ports that "
            "the other hosts can reach"},
           Flag{"rank", kCount, "R", "this host's position in --peers"}.Fallback("0"),
           Flag{"meet-timeout", kDuration, "T",
                "how long to wait for the other hosts after timing this host's layers, whose times "
                "are kept for another attempt"}
               .Fallback("60s"),
           Output("write the profile to FILE and print a summary; without it the profile goes "
                  "to stdout"),
           {"fresh", kSwitch, "", "ignore the cache"},
           {"cache", kFolder, "DIR",
            "directory of earlier measurements (default: cadre in $XDG_CACHE_HOME or ~/.cache)"},
           Mesh(),
           Layer(),
           ModelRanks(),
           SpaceRanks()},
      .brief = "measure machines and links for a model: writes a profile for 'cadre plan'",
      .text =
          R"(N worker processes on this machine time the model's layers simultaneously, as in training: every
split of a layer that a plan for 1, 2, 4, ... workers is likely to use, without other ranks. Then they
measure the links between them. The profile is text: edit it to plan for other machines or links.

With --peers every host runs the same command with its own --rank. One process of each host measures
the links between all pairs of hosts over plain TCP, in rounds in which each host has one partner. The
host of rank 0 writes the profile.

Layer times are cached by hardware, model, batch, workers and threads; links between hosts are measured
every time. --mesh, --layer, --model-ranks and --space-ranks exclude plans. The command fails after 30
minutes unless --timeout is given.
)",
      .examples = R"(  cadre probe alexnet --batch 32 --workers 4 -O here.profile
  cadre plan alexnet --batch 32 --workers 4 --profile here.profile
  cadre probe vgg11 --peers 10.0.0.5:7100,10.0.0.6:7100 --rank 0 -O rack.profile
)",
      .handles_interrupts = true,
      .run = ProbeCluster};
}

Verb Formula() {
  return {
      .name = "formula",
      .arguments = {{.name = "NAME", .optional = true},
                    {.name = "PARAMETER=NUMBER", .repeated = true}},
      .brief = "evaluate a formula of the papers; needs no cluster",
      .text =
          R"(Without arguments it lists the formulas with their parameters and sources. Formulas of whole models
are in 'cadre plan --strategy'. Ranks, groups and devices go up to 1,048,576, other counts to 9e15;
numbers whose result would not be finite are refused.

group-hybrid takes a network layer by layer, `convolutions` of them first; grid and batch-limit take a
layer without `inputs` as the first one, whose input has no gradient. Words are fp32 elements.
)",
      .examples = R"(  cadre formula
  cadre formula ring ranks=8 bytes=139392 alpha=50e-6 bandwidth=1.25e9
  cadre formula hybrid-rule devices=2 epochs=4 more_epochs=7 speedup=1.32 -o json
  cadre formula overlap forward=10,10,2,2 backward=60,60,4,4 communication=3,3,40,10
)",
      .run = ShowFormula};
}

Verb MeasureEpochsVerb() {
  return {
      .name = "measure-epochs",
      .arguments = {kRunFile},
      .flags =
          {Flag{"target", kNumber, "A", "test accuracy to reach, a fraction of the test samples"}
               .Required()
               .Range(1e-6, 1),
           Flag{"workers", kText, "N,N,...", "numbers of workers"}.Required(),
           Flag{"batch", kCount, "B", "samples per step of one worker (default: batch_per_group)"}
               .Min(1),
           Flag{"max-epochs", kCount, "E",
                "end a run that has not reached the target after E epochs (default: stop.epochs)"}
               .Min(1),
           Flag{"rate",
                kChoice,
                "RULE",
                "how the learning rate follows the samples per step",
                {"linear", "sqrt", "none"}}
               .Fallback("linear"),
           Output("also keep the table in FILE"), Threads()},
      .brief = "measure how many epochs training takes for each number of workers",
      .text =
          R"(Larger steps are fewer, but a model needs more epochs of them. For each number N of workers one
worker on this machine trains the model with the steps of N workers of B samples each: it computes N
parts one after the other, adds their gradients and updates once. Only the time of a step differs from
that of N workers, and the time is not measured. A run ends at an evaluation with the accuracy of
--target. Evaluations take place once per epoch; between two of them the accuracy is interpolated
linearly, so a target is met at a fraction of an epoch.

If a step has k times the samples of the run file's step, --rate linear multiplies the learning rate by
k, sqrt (for AdamW) by the square root of k, and none by 1. Warm-up and step decay last as many samples
as in the run file; a rate that is raised without a warm-up in the run file gets one of as many samples
as 100 steps of the run file.

The table goes to stdout and, in the format of 'cadre plan --epochs', into FILE after each run. With
the same FILE again only missing entries are measured; another spec.seed is another entry.
)",
      .examples =
          R"(  cadre measure-epochs deploy/demo.textproto --target 0.88 --workers 1,2,4,8 -O epochs.textproto
  cadre plan deploy/demo.textproto --workers 16 --epochs epochs.textproto
)",
      .handles_interrupts = true,
      .run = MeasureEpochs};
}

Verb Runs() {
  return {.name = "runs",
          .brief = "list current and past runs",
          .examples = R"(  cadre runs
  cadre runs -o json | jq -r '.runs[] | select(.state == "running") | .run'
)",
          .run = ListRuns};
}

Verb Status() {
  return {
      .name = "status",
      .arguments = {kOptionalRun},
      .brief = "show runs, groups, members and counters",
      .text = R"(With a run id, only that run. 'cadre describe RUN' shows the details of its groups.
)",
      .examples = R"(  cadre status
  cadre status -o json | jq '.groups[] | {group, generation, mesh}'
  cadre status -o json | jq '.groups[] | {predicted, measured, prediction_error, prediction_blame}'
  cadre status -o json | jq '.groups[].plan | {link, algorithms: [.buckets[].algorithm]}'
)",
      .run = ShowStatus};
}

Verb Describe() {
  return {
      .name = "describe",
      .arguments = {kRun},
      .brief = "show a run's details: plans, step times, memory and parameters of each rank",
      .text =
          R"(Per group: the collective algorithms and the measured link on which they are based, the predicted
and the measured time of a step by part, which ranks hold which part of sharded parameters, and the
memory of each rank. A prediction is left out if processes of another group share the group's machines,
because it does not account for them. The JSON is that of 'cadre status'.

The divergence of groups is the mean over groups of |w_g - w|^2 / |w - w_before|^2 before averaging,
smoothed over rounds: 0 if all groups move alike, G - 1 if G groups share nothing but noise. Up to 1,
more groups or longer intervals between averages may be tried; the recommendation respects the known
bounds for local SGD.
)",
      .examples = "  cadre describe run-1\n",
      .run = DescribeRun};
}

Verb Watch() {
  return {
      .name = "watch",
      .arguments = {kOptionalRun},
      .brief = "print one line per change until the run ends",
      .text =
          R"(Without a run id it prints changes of all runs until it is interrupted. With -o json each change is
one object on one line, the input of plotting scripts.
)",
      .examples = R"(  cadre watch
  cadre watch run-1 -o json | jq -c '.run | {step, loss}'
  cadre watch run-1 -o json | bench/plot_run.py -o run.png
)",
      .run = WatchRuns};
}

Verb Members() {
  return {.name = "members",
          .brief = "list workers and aggregators with their heartbeats",
          .examples = R"(  cadre members
  cadre members -o json | jq '.workers | length'
)",
          .run = ShowMembers};
}

Verb Stop() {
  return {.name = "stop",
          .arguments = {kRun},
          .brief = "stop a run immediately; its last version remains",
          .examples = "  cadre stop run-1\n",
          .run = StopRun};
}

Verb Wait() {
  return {
      .name = "wait",
      .arguments = {kRun},
      .brief = "wait until a run ends",
      .text =
          R"(Exit code 0 if the run reached its stop rule, 1 if it failed or was stopped, 3 if there is no such
run, 4 after --timeout.
)",
      .examples = "  cadre wait run-1 --timeout 30m && echo trained\n",
      .run = WaitForRun};
}

Verb Trace() {
  return {
      .name = "trace",
      .arguments = {kRun},
      .flags = {Flag{"group", kCount, "G", "the group"}.Fallback("0"),
                Flag{"steps", kCount, "N", "steps to record, 1 to 100"}.Fallback("3").Min(1).Max(
                    100),
                Output("where to write the trace (default trace-RUN.json); - is stdout, and the "
                       "table then goes to stderr")},
      .brief = "record steps of a group: which rank computed and which waited",
      .text =
          R"(Every rank of the group records its next N steps: each operation, collective and wait. The trace is
in Chrome's format, for https://ui.perfetto.dev and chrome://tracing: one process per rank, one line for
its main thread and one for its communication. The table shows, per rank and step, the time of the
step, of computing, of moving activations between ranks, of collectives in the background, and how
long the rank waited for these without other work.

Times are read from each host's own clock: compare the intervals of one rank or of ranks on one host;
the clocks of two hosts may differ by more than a step.

Training continues meanwhile, slightly slower. A group is traced once at a time. The command waits for
two minutes unless --timeout is given; a group at a round's boundary finishes its round first.
)",
      .examples = R"(  cadre trace run-1
  cadre trace run-1 --group 1 --steps 10 -O step.json
  cadre trace run-1 -o json | jq '.ranks[] | {rank, step_seconds, exposed_share}'
)",
      .run = TraceRun};
}

Verb Completion() {
  return {.name = "completion",
          .arguments = {{.name = "bash|zsh|fish"}},
          .brief = "print a script that completes cadre's command line in a shell",
          .examples = R"(  source <(cadre completion bash)
  cadre completion zsh > "${fpath[1]}/_cadre"
  cadre completion fish > ~/.config/fish/completions/cadre.fish
)",
          .run = [](const Invocation& in) -> absl::StatusOr<int> {
            CADRE_ASSIGN_OR_RETURN(const std::string script, CompletionScript(in.line.argument()));
            in.console.out << script << std::flush;
            return kExitOk;
          }};
}

Verb Help() {
  return {.name = "help",
          .arguments = {{.name = "VERB", .kind = kVerb, .optional = true}},
          .brief = "explain a verb",
          .run = [](const Invocation& in) -> absl::StatusOr<int> {
            const std::string name = in.line.argument();
            if (!name.empty() && FindVerb(name) == nullptr) return UnknownVerb(name);
            in.console.out << (name.empty() ? GeneralHelp() : VerbHelp(*FindVerb(name)))
                           << std::flush;
            return kExitOk;
          }};
}

Verb Version() {
  return {.name = "version",
          .brief = "print the version of this program and of its protocol",
          .run = [](const Invocation& in) -> absl::StatusOr<int> {
            in.console.out << absl::StrFormat("cadre %s (protocol %016x)\n", CADRE_VERSION,
                                              SchemaHash())
                           << std::flush;
            return kExitOk;
          }};
}

}  // namespace

const std::vector<Flag>& GlobalFlags() {
  static const std::vector<Flag> flags = {
      Flag{"coordinator", kText, "HOST:PORT", "address of the coordinator"}.Fallback(
          "127.0.0.1:7000"),
      Flag{"o", kChoice, "FORMAT", "format of stdout", {"table", "json"}}.Fallback("table"),
      {"timeout", kDuration, "T", "give up after T, such as 90s or 5m"},
      {"quiet", kSwitch, "", "no progress and no hints on stderr"},
      Flag{"color", kChoice, "WHEN", "colors on terminals", {"auto", "never"}}.Fallback("auto")};
  return flags;
}

const std::vector<Verb>& Verbs() {
  static const std::vector<Verb> verbs = {
      Local(), Run(),    PlanVerb(),   Probe(), Formula(), MeasureEpochsVerb(),
      Runs(),  Status(), Describe(),   Watch(), Members(), Stop(),
      Wait(),  Trace(),  Completion(), Help(),  Version()};
  return verbs;
}

}  // namespace cadre
