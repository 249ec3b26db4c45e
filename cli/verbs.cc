// The table of verbs. A verb's row is all that the program knows about it; see cli/verb.h.
//
// The functions before Verbs() return flags that several rows share, or the flags of one row that
// has many. Ranges of values are as narrow as the meaning of a flag permits, so that most errors
// are found when the command line is parsed.
#include <iostream>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/verb.h"
#include "model/validate.h"
#include "plan/search/plan_problem.h"

namespace cadre {
namespace {

using enum ValueKind;

// --- Flags that several verbs have ---

Flag MeshFlag() {
  return {"mesh", kText, "AXES",
          "the group's mesh, such as data=4,space=1,model=2, in place of the planner's choice; "
          "sets the ranks of a group to the product"};
}

Flag LayerFlag() {
  return {
      "layer", kText, "PINS",
      "how layers are split, such as fc6=model,conv1=data, in place of the planner's choice: by "
      "data (samples), model (outputs), model-in (inputs) or domain (rows of images); or on which "
      "ranks they are, such as mixed5=stage@1"};
}

Flag ModelRanksFlag() {
  return {"model-ranks", kCount, "N", "ranks of a group that split the layers' weights"};
}

Flag SpaceRanksFlag() {
  return {"space-ranks", kCount, "N", "ranks of a group that split the images' rows"};
}

Flag CollectivesFlag() {
  return Flag{
      "collectives", kChoice, "POLICY",
      "how collective algorithms are chosen; auto decides by size and measured links, paper "
      "takes butterfly for convolutions and ring for fully connected layers (Kim, Yeo, Oh "
      "2021), native is NCCL (needs GPUs)"}
      .Choices({"auto", "ring", "butterfly", "halving-doubling", "paper", "native"});
}

Flag ThreadsFlag() {
  return Flag{"threads", kCount, "N", "compute threads of each worker"}.Fallback("1").Min(1);
}

Flag OutputFlag(absl::string_view help) { return Flag{"output", kFile, "FILE", help}.Letter('O'); }

// The flags of 'cadre local' and 'cadre run' that replace values of the run file.
std::vector<Flag> RunFlags() {
  return {
      Flag{"groups", kCount, "G", "groups that train in parallel and average their models"}.Min(1),
      Flag{"ranks", kCount, "R", "workers of each group"}.Min(1),
      {"aggregators", kCount, "A",
       "aggregators that share the averaging; 0 only if the run never averages"},
      ModelRanksFlag(),
      SpaceRanksFlag(),
      MeshFlag(),
      LayerFlag(),
      CollectivesFlag(),
      Flag{"overlap", kChoice, "on|off",
           "whether gradients and weights are transferred while layers compute"}
          .Choices({"on", "off"}),
      Flag{"device", kText, "DEVICE",
           "what workers compute on: cpu, cuda or, for 'cadre local', cuda:N (all its workers "
           "share that GPU)"}
          .Choices({"cpu", "cuda"}),
      Flag{"precision", kChoice, "P",
           "number format of convolutions and matrix products; tf32 needs GPUs, bf16 GPUs or CPUs "
           "with AVX512_BF16"}
          .Choices({"fp32", "tf32", "bf16"}),
      {"from", kFolder, "DIR",
       "checkpoint to start from, or a directory whose newest checkpoint is used; for 'cadre run' "
       "a path on the machines of all workers and aggregators"},
      {"checkpoint", kFolder, "DIR",
       "directory that receives the run's checkpoints; each run needs its own"}};
}

// The flags of one verb, followed by flags that it shares with other verbs.
std::vector<Flag> With(std::vector<Flag> flags, const std::vector<Flag>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// The values of --strategy, in the order in which tables list the strategies.
std::vector<absl::string_view> StrategyNames() {
  std::vector<absl::string_view> names;
  for (const Strategy strategy : AllStrategies()) names.push_back(StrategyName(strategy));
  return names;
}

const Argument kRunFile{.name = "RUN.textproto", .kind = kModel};
const Argument kModelArgument{.name = "RUN.textproto|MODEL", .kind = kModel};
const Argument kRun{.name = "RUN"};
const Argument kOptionalRun{.name = "RUN", .optional = true};

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
      Flag{"strategy", kChoice, "NAME",
           "how layers may be split; auto (the default) searches all ways, the others are those of "
           "papers"}
          .Choices(StrategyNames()),
      Flag{"compare", kText, "NAMES",
           "compare strategies in a table: all, or names separated by commas, such as "
           "batch,model,uniform-grid,group-hybrid,auto"}
          .Choices({"all"}),
      MeshFlag(),
      LayerFlag(),
      {"epochs", kFile, "FILE",
       "a table written by 'cadre measure-epochs': predicts the time to its target accuracy, and "
       "whether a split model with a smaller batch reaches it sooner"},
      Flag{"samples", kCount, "N", "samples of an epoch, if the run file does not state them"}
          .Min(1)
          .Max(std::numeric_limits<uint64_t>::max()),
      Flag{"groups", kCount, "G",
           "also choose the number of groups, up to G, and the steps between averages; each group "
           "takes steps of --batch. Implied by --profile with --epochs"}
          .Min(1),
      {"sensitivity", kSwitch, "",
       "repeat the search with other bandwidths, batches and memory sizes, to show what would "
       "change the plan; by default only if the search is short, never with --no-sensitivity"},
      CollectivesFlag(),
      Flag{"bucket-elements", kCount, "N",
           "elements at which a bucket of parameters is full: 1 gives each layer its own bucket, 0 "
           "sets no limit; the default depends on the link"}
          .Max(std::numeric_limits<uint64_t>::max()),
      ModelRanksFlag(),
      SpaceRanksFlag(),
      {"placement", kFile, "FILE",
       "place the operators of this graph on devices, instead of planning a run"},
      Flag{"solver-seconds", kNumber, "S",
           "with --placement: stop the solver after S seconds and take the best found"}
          .Fallback("10")
          .Range(1e-3, 86'400)};
}

}  // namespace

const std::vector<Flag>& GlobalFlags() {
  static const std::vector<Flag> flags = {
      {"coordinator", kText, "HOST:PORT",
       "address of the coordinator (default $CADRE_COORDINATOR, otherwise 127.0.0.1:7000)"},
      {"tls", kFolder, "DIR",
       "credentials for the coordinator: ca.crt, tls.crt and tls.key (default $CADRE_TLS)"},
      {"insecure", kSwitch, "", "connect, or start a local cluster, without TLS"},
      Flag{"o", kChoice, "FORMAT", "format of stdout", {"table", "wide", "name", "json", "jsonl"}}
          .Fallback("table"),
      {"timeout", kDuration, "T", "give up after T, such as 90s or 5m"},
      {"quiet", kSwitch, "", "no progress and no hints on stderr"},
      Flag{"color",
           kChoice,
           "WHEN",
           "colors on terminals; auto: unless $NO_COLOR is set",
           {"auto", "never"}}
          .Fallback("auto")};
  return flags;
}

const std::vector<Verb>& Verbs() {
  static const std::vector<Verb> verbs = {
      // Without a coordinator. Verbs that start processes handle interrupts themselves.
      {.name = "local",
       .arguments = {kRunFile},
       .flags = With(RunFlags(),
                     {ThreadsFlag(),
                      {"dir", kFolder, "DIR",
                       "keep store, data and logs in DIR; without it they are in a temporary "
                       "directory that is removed unless the run fails"},
                      {"data-root", kFolder, "DIR",
                       "further folder of data: links of the run's data lead to it; without it "
                       "processes read the folders that the run file names, and those to which "
                       "links in them lead"},
                      {"checkpoint-root", kFolder, "DIR", "the same for checkpoints"},
                      // Shown as --no-restart, the form that the text describes.
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
restarted, and the run continues. Workers on CPUs are divided among the NUMA nodes of the machine. Flags
replace values of the run file.

With -o json the last line of stdout is one JSON object. The exit code is 0 only when the run reached
its stop rule.
)",
       .examples = R"(  cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2
  cadre local deploy/demo.textproto --groups 1 --ranks 4 --space-ranks 2 --model-ranks 2
  cadre local deploy/demo.textproto -o json | tail -n 1 | jq .test_accuracy
)",
       .handles_interrupts = true,
       .run = RunLocal},
      {.name = "run",
       .arguments = {kRunFile},
       .flags = With({{"detach", kSwitch, "", "print the run's id and exit"}}, RunFlags()),
       .brief = "submit a run to a coordinator and follow it",
       .text =
           R"(The cluster's workers train the run as soon as enough of them are idle. Flags replace values of
the run file. Ctrl-C stops following; the run continues. The exit code is 0 only when the run reached
its stop rule.
)",
       .examples = R"(  cadre run deploy/demo.textproto --coordinator 10.0.0.5:7000
  id=$(cadre run deploy/demo.textproto --detach) && cadre wait "$id" --timeout 30m
)",
       .run = SubmitRun},
      {.name = "plan",
       .arguments = {{.name = "RUN.textproto|MODEL", .kind = kModel, .optional = true}},
       .flags = PlanFlags(),
       .brief = "show how a group of workers would train a model, and its cost; needs no cluster",
       .text =
           R"(Searches the fastest way for a group to train a model: the mesh of its ranks, how each layer is
split over it, what moves between layers, and the buckets of parameters whose gradients are reduced
together. For each layer it shows computation, communication and memory, and the best alternative.
MODEL is a model of the zoo, such as alexnet. Without --alpha and --bandwidth, or --profile, no time is
predicted; the result is the plan with which a group starts before it has measured its links.

Strategies other than auto are computed by their papers' formulas, elements and seconds alike; next to
these, the column BY CADRE (in JSON: engine) has the costs that Cadre itself predicts. The formulas
include neither overlap nor pinned layers: if communication overlaps or layers are pinned, --compare
compares only Cadre's own predictions.

The line "searched ..." states whether the sum of the times of layers and of the moves between them is
minimal (in JSON: exact): no other split of the layers, on any mesh, has a smaller sum. With --flops or
--profile communication overlaps with computation. The time of a step is then not a plain sum, and the
result is the fastest plan that the search has found.

A bucket's gradients are summed by a reduce-scatter and its weights gathered by an all-gather;
COMMUNICATION is the time of both for all buckets, without overlap. ALL-REDUCE ONLY is the time of the
same buckets if every rank kept all optimizer state and gradients were all-reduced, as papers assume.

--placement assigns the operators of a graph to devices such that the last one ends as early as
possible: by an integer program if the graph is small (16 operators take a second or two), otherwise by
list scheduling; in both cases it reports the gap to a lower bound. A graph is a text file of
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
       .run = ShowPlan},
      {.name = "probe",
       .arguments = {kModelArgument},
       .flags =
           {Flag{"workers", kCount, "N",
                 "worker processes on this machine; by default one for each NUMA node"}
                .Min(1)
                .Max(1024),
            ThreadsFlag(),
            {"batch", kCount, "B", "samples per step, in place of the run file's"},
            {"peers", kText, "H:P,...",
             "host:port of every host in the order of ranks, including this one; the ports must be "
             "free and reachable from the other hosts"},
            Flag{"rank", kCount, "R", "this host's position in --peers"}.Fallback("0"),
            Flag{"meet-timeout", kDuration, "T",
                 "how long to wait for the other hosts after this host's layers are timed; the "
                 "times stay in the cache for another attempt"}
                .Fallback("60s"),
            OutputFlag("write the profile to FILE and print a summary; without it the profile goes "
                   "to stdout"),
            {"fresh", kSwitch, "", "measure again even if the cache has the times of this machine"},
            {"cache", kFolder, "DIR",
             "directory of earlier measurements (default: cadre in $XDG_CACHE_HOME or ~/.cache)"},
            MeshFlag(),
            LayerFlag(),
            ModelRanksFlag(),
            SpaceRanksFlag()},
       .brief = "measure machines and links for a model: writes a profile for 'cadre plan'",
       .text =
           R"(N worker processes on this machine compute at the same time, divided among its NUMA nodes, as in
training. Each times its part of every split of a layer that a plan for 1, 2, 4, ... workers is likely
to use, without exchanging data. Then they measure the links between them. The profile is text: edit it
to plan for other machines or links.

With --peers every host runs the same command with its own --rank. One process of each host measures
the links to all other hosts over TCP without encryption; each host measures with one other host at a
time. The host of rank 0 writes the profile.

Layer times are cached by hardware, model, batch, workers and threads; links between hosts are measured
every time. --mesh, --layer, --model-ranks and --space-ranks limit the splits that are timed. The
command fails after 30 minutes unless --timeout is given.
)",
       .examples = R"(  cadre probe alexnet --batch 32 --workers 4 -O here.profile
  cadre plan alexnet --batch 32 --workers 4 --profile here.profile
  cadre probe vgg11 --peers 10.0.0.5:7100,10.0.0.6:7100 --rank 0 -O rack.profile
)",
       .handles_interrupts = true,
       .run = ProbeCluster},
      {.name = "formula",
       .arguments = {{.name = "NAME", .optional = true},
                     {.name = "PARAMETER=NUMBER", .repeated = true}},
       .brief = "evaluate a formula of the papers; needs no cluster",
       .text =
           R"(Without arguments it lists the formulas with their parameters and sources. 'cadre plan --strategy'
evaluates the formulas for a whole model. Ranks, groups and devices are at most 1,048,576, other counts
at most 9e15; a result that is not finite is an error.

The lists of group-hybrid have one number per layer; the first `convolutions` layers are convolutions.
If `inputs` is missing, grid and batch-limit treat the layer as the first one of its model, whose input
has no gradient. Words are fp32 elements.
)",
       .examples = R"(  cadre formula
  cadre formula ring ranks=8 bytes=139392 alpha=50e-6 bandwidth=1.25e9
  cadre formula hybrid-rule devices=2 epochs=4 more_epochs=7 speedup=1.32 -o json
  cadre formula overlap forward=10,10,2,2 backward=60,60,4,4 communication=3,3,40,10
)",
       .run = ShowFormula},
      {.name = "measure-epochs",
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
            Flag{"rate", kChoice, "RULE", "how the learning rate follows the samples per step"}
                .Choices({"linear", "sqrt", "none"})
                .Fallback("linear"),
            OutputFlag("also write the table to FILE"), ThreadsFlag()},
       .brief = "measure how many epochs training takes for each number of workers",
       .text =
           R"(With larger steps an epoch has fewer steps, but the model needs more epochs. For each number N of
workers one worker on this machine trains the model with the steps of N workers of B samples each: it
computes the N parts of a step one after the other, adds their gradients and updates once. Only the time
of a step differs from that of N workers, and this command does not measure it. The model is evaluated
after every epoch, and a run ends at the first evaluation that reaches --target. The accuracy between
two evaluations is interpolated linearly, so the result may be a fraction of an epoch.

If a step has k times the samples of the run file's step, --rate linear multiplies the learning rate by
k, sqrt (for AdamW) by the square root of k, and none by 1. Warm-up and step decay last as many samples
as in the run file. If the rate is raised and the run file has no warm-up, one is added that lasts as
many samples as 100 steps of the run file.

The table is printed on stdout and, if FILE is given, written to FILE after each run, in the format that
'cadre plan --epochs' reads. If FILE exists, only entries that it lacks are measured; runs with another
seed in the run file are separate entries.
)",
       .examples =
           R"(  cadre measure-epochs deploy/demo.textproto --target 0.88 --workers 1,2,4,8 -O epochs.textproto
  cadre plan deploy/demo.textproto --workers 16 --epochs epochs.textproto
)",
       .handles_interrupts = true,
       .run = MeasureEpochs},
      {.name = "replay",
       .arguments = {{.name = "FOLDER", .kind = kFolder, .repeated = true}},
       .brief = "compute the versions of a run again from what its groups have contributed",
       .text =
           R"(Each FOLDER is that of the run in the data folder of an aggregator (DATA_DIR/RUN), on this
machine; the folders of all shards are required. The aggregators must have been started with
--archive, which keeps the contributions and the orders of all rounds.

Version 0 is computed from the run's spec, and every later version from its order and
contributions, with outer optimizer, codecs and fragments. The command fails at the first version
whose digest is not that of the aggregator's. The digest of the last version is that of 'cadre
status'.
)",
       .examples = R"(  cadre replay /data/aggregator-0/run-1 /data/aggregator-1/run-1
)",
       .run = ReplayRun},
      // Calls of a coordinator.
      {.name = "runs",
       .brief = "list current and past runs",
       .examples = R"(  cadre runs
  cadre runs -o json | jq -r '.runs[] | select(.state == "running") | .run'
)",
       .run = ListRuns},
      {.name = "status",
       .arguments = {kOptionalRun},
       .brief = "show runs, groups, members and counters",
       .text =
           R"(With a run, only that one: its id, such as run-1-lenet, or its name, which stands for the newest run
of that name that has not ended or, if all have ended, for the newest one; so in all commands that
take a RUN. 'cadre describe RUN' shows the details of its groups. In JSON,
prediction_blame names the input of the prediction that was wrong, if the prediction is more than a
fifth off.
)",
       .examples = R"(  cadre status
  cadre status -o json | jq '.groups[] | {group, generation, mesh}'
  cadre status -o json | jq '.groups[] | {predicted, measured, prediction_error, prediction_blame}'
  cadre status -o json | jq '.groups[].plan | {link, algorithms: [.buckets[].algorithm]}'
)",
       .run = ShowStatus},
      {.name = "describe",
       .arguments = {kRun},
       .brief = "show a run's details: plans, step times, memory and parameters of each rank",
       .text =
           R"(Per group: the collective algorithms and the measured link on which they are based, the predicted
and the measured time of a step by part, which ranks hold which part of sharded parameters, and the
memory of each rank. A prediction is left out if processes of another group share the group's machines,
because it does not account for them. The JSON is that of 'cadre status'.

The discrepancy of the groups is the mean over groups of |w_g - w|^2 / |w - w_before|^2 just before
averaging, smoothed over rounds, where w_g are the weights of a group, w their mean and w_before the
model before the round. It is 0 if all groups make the same progress, and G - 1 if the progress of the G
groups is independent noise. If it is at most 1, try more groups or more steps between averages; the
recommendation next to it also respects the bound on these steps that the convergence of local SGD sets.
)",
       .examples = "  cadre describe run-1\n",
       .run = DescribeRun},
      {.name = "watch",
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
       .run = WatchRuns},
      {.name = "members",
       .brief = "list workers and aggregators with their heartbeats",
       .examples = R"(  cadre members
  cadre members -o json | jq '.workers | length'
)",
       .run = ShowMembers},
      {.name = "events",
       .arguments = {kOptionalRun},
       .flags = {Flag{"after", kCount, "N", "only events with higher numbers"}.Fallback("0").Max(
                     std::numeric_limits<uint64_t>::max()),
                 {"follow", kSwitch, "", "print further events as they happen"}},
       .brief = "list what has happened: members, groups, runs, evaluations",
       .text =
           R"(With a run id, only events of that run. The coordinator keeps the newest 1,024 events, also across
its restarts. -o name prints the numbers of the events.
)",
       .examples = R"(  cadre events --follow
  cadre events run-1 -o jsonl | jq -r 'select(.kind == "group_ended") | .text'
)",
       .run = ShowEvents},
      {.name = "history",
       .arguments = {kRun},
       .flags = {Flag{"after", kCount, "N", "only entries with higher numbers"}.Fallback("0").Max(
           std::numeric_limits<uint64_t>::max())},
       .brief = "list the commits and evaluations of a run",
       .text =
           R"(A commit has the step, the loss, and the times that each group has spent computing, staging, waiting
and pulling. Of old commits, fewer are kept the older they are.
)",
       .examples = R"(  cadre history run-1
  cadre history run-1 -o jsonl | jq -r '.evaluation // empty | [.step, .accuracy] | @tsv'
)",
       .run = ShowHistory},
      {.name = "health",
       .brief = "check whether anything needs an operator",
       .text =
           R"(Exit code 0 if the coordinator answers and nothing is wrong, 1 if something is, 4 if the coordinator
does not answer.
)",
       .examples = "  cadre health || cadre events\n",
       .run = CheckHealth},
      {.name = "cordon",
       .arguments = {{.name = "NAME|HOST|ID"}},
       .flags = {{"undo", kSwitch, "", "readmit the workers and erase their failures on record"}},
       .brief = "exclude a worker, or all workers of a host, from new work",
       .text =
           R"(The workers finish the work of their current groups, but receive no new rank until --undo. Prints the
ids of the workers that matched. A cordon survives restarts of the workers and of the coordinator.

A worker that fails is excluded without a cordon, for a time that doubles with each failure, and
quarantined after five; 'cadre status' shows the cause. --undo also ends that. Failures of a host are on
the record of the host.
)",
       .examples = R"(  cadre cordon worker-3
  cadre cordon host-7 --undo
)",
       .run = CordonMembers},
      {.name = "drain",
       .arguments = {{.name = "NAME|HOST|ID"}},
       .flags = {{"within", kDuration, "T",
                  "time after which the workers end in any case; default: their own limits"}},
       .brief = "let a worker, or all workers of a host, contribute and end",
       .text =
           R"(As 'cadre cordon', and the connected workers leave their groups and end with exit code 143. Their
groups contribute before, so that no steps are lost: at the next boundary, or after the current step
if the boundary is further away than half of the time that the workers have. That is --within, or
else --drain-timeout of each worker. The groups continue with idle workers or with fewer ranks. Prints
the ids of the workers. A restarted worker remains excluded until
'cadre cordon --undo'.

Aggregators cannot be drained: the shards of a run stay where they are until it ends.
)",
       .examples = R"(  cadre drain worker-3
  cadre drain host-7 --within 90s
)",
       .run = CordonMembers},
      {.name = "scale",
       .arguments = {kRun},
       .flags = {Flag{"groups", kCount, "N", "number of groups"}.Required().Min(1).Max(kMaxGroups)},
       .brief = "change the number of groups of a run",
       .text =
           R"(The change takes effect when the current round is averaged; until then another call replaces it. New
groups wait for idle workers; the workers of removed groups, which are those with the highest numbers,
become idle. Every sample is still used once per epoch, so with more groups an epoch has fewer steps.
The batch per group, the steps between averages and the learning rate schedule do not change; a schedule
that ends with the run ends with its new last step.

Fails if the run never averages, has ended or trains its last step, and if its averaging.quorum or
averaging.min_groups requires more groups.
)",
       .examples = "  cadre scale run-1 --groups 4\n",
       .run = ScaleRun},
      {.name = "stop",
       .arguments = {kRun},
       .brief = "stop a run immediately; its last version remains",
       .text = "RUN must be an id if several runs of the name have not ended.\n",
       .examples = "  cadre stop run-1\n",
       .run = StopRun},
      {.name = "delete",
       .arguments = {kRun},
       .brief = "delete a run that has ended, with its model",
       .text =
           R"(Removes the records of the run and its files on the aggregators; an aggregator that is away removes
them when it returns. Fails if the run has not ended, and if RUN is the name of several runs. Without
this command a coordinator keeps the runs that ended last (--keep-closed-runs of cadre-coordinator).
)",
       .examples = "  cadre delete run-1\n",
       .run = DeleteRun},
      {.name = "resume",
       .arguments = {kRun},
       .brief = "continue a parked run",
       .text =
           R"(A run is parked if an aggregator has lost its files and no live group can restore them. 'cadre status'
shows the cause and the remedy. Resume the run once the disk of the aggregator is restored.
)",
       .examples = "  cadre resume run-1\n",
       .run = ResumeRun},
      {.name = "adopt",
       .arguments = {kOptionalRun},
       .brief = "continue runs of a coordinator that has lost its store",
       .text =
           R"(Registers the runs that the connected aggregators store and the coordinator does not know; without a
run id, all of them. Each continues at its newest version once workers are idle. Losses, results of
evaluations and traffic from before the loss are not recovered.

A run is adopted only if all its shards are there and belong together; otherwise its problem is printed
and nothing is changed. The exit code is 1 if a run has a problem.
)",
       .examples = R"(  cadre adopt
  cadre adopt run-1 -o json
)",
       .run = AdoptRuns},
      {.name = "backup",
       .arguments = {{.name = "FILE", .kind = kFile}},
       .brief = "copy the coordinator's store to a file, while runs continue",
       .text =
           R"(To restore it, stop the coordinator, remove its store with the files STORE-wal and STORE-shm, copy FILE
to the path of the store and start the coordinator. Runs that were live continue from the newest version
that all their aggregators have. Runs that have ended since are stopped, and runs that were submitted
since are adopted with 'cadre adopt'. The file contains the keys of the runs: keep it secret.
)",
       .examples = "  cadre backup store-$(date +%F).db\n",
       .run = BackUpStore},
      {.name = "wait",
       .arguments = {kOptionalRun},
       .flags = {{"for", kText, "WHAT",
                  "state=STATE, version=N (of the run), or members=N (connected workers, without a "
                  "run)"}},
       .brief = "wait until a run ends, or for another condition",
       .text =
           R"(Exit code 0 if the run reached its stop rule, 1 if it failed or was stopped, 3 if there is no such
run, 4 after --timeout. With --for, 0 as soon as the condition holds, 1 if it cannot hold any more.
)",
       .examples = R"(  cadre wait run-1 --timeout 30m && echo trained
  cadre wait --for members=4 && cadre run my-run.textproto
  cadre wait run-1 --for version=10
)",
       .run = WaitForRun},
      {.name = "trace",
       .arguments = {kRun},
       .flags = {Flag{"group", kCount, "G", "the group"}.Fallback("0"),
                 Flag{"steps", kCount, "N", "steps to record, 1 to 100"}.Fallback("3").Min(1).Max(
                     100),
                 OutputFlag("where to write the trace (default trace-RUN.json); - is stdout, and the "
                        "table then goes to stderr")},
       .brief = "record steps of a group: which rank computed and which waited",
       .text =
           R"(Every rank of the group records its next N steps: each operation, collective and wait. The trace is
in Chrome's format, for https://ui.perfetto.dev and chrome://tracing: one process per rank, one line for
its main thread and one for its communication. The table shows, per rank and step, the time of the
step, of computing, of moving activations between ranks, of collectives in the background, and how
long the rank waited for collectives without other work.

Times are read from each host's own clock: compare the intervals of one rank or of ranks on one host;
the clocks of two hosts may differ by more than a step.

Training continues meanwhile, slightly slower. Only one trace of a group can be recorded at a time. The
command fails after two minutes unless --timeout is given; a group that is averaging finishes its round
first.
)",
       .examples = R"(  cadre trace run-1
  cadre trace run-1 --group 1 --steps 10 -O step.json
  cadre trace run-1 -o json | jq '.ranks[] | {rank, step_seconds, exposed_share}'
)",
       .run = TraceRun},
      {.name = "import",
       .arguments = {{.name = "MODEL.onnx", .kind = kFile}},
       .flags = {OutputFlag("the run file to write").Fallback("run.textproto"),
                 Flag{"weights", kFile, "FILE", "the file of weights to write"}.Fallback(
                     "weights.safetensors"),
                 {"padding-token", kCount, "ID",
                  "the token of padding, if the network's second input is a mask of padding"},
                 {"scores", kText, "NAME",
                  "the output with the scores, if the network has several outputs"}},
       .brief = "make a run file and weights from a network in ONNX format",
       .text =
           R"(Translates the forward graph that PyTorch exports (torch.onnx.export) to layers of Cadre, which
has its own gradients. Names of modules become names of layers. The run file begins from the
weights; adapt its data, and train it like any other. Operators without a translation are reported
together, with their nodes and the nearest operators that work. What the file has and the model has
not, such as other outputs, unused tensors and fixed numbers, is printed. docs/import.md describes how
to export, and what is supported.
)",
       .examples = R"(  cadre import resnet18.onnx -O run.textproto --weights weights.safetensors
  cadre import bert.onnx --padding-token 0
  cadre import detector.onnx --scores logits
  cadre local run.textproto --checkpoint checkpoints
  cadre export checkpoints -O trained.safetensors
)",
       .run = ImportModel},
      {.name = "export",
       .arguments = {{.name = "RUN|CHECKPOINT", .kind = kFolder}},
       .flags = {OutputFlag("the file of weights to write").Fallback("weights.safetensors"),
                 {"hf", kFolder, "DIR",
                  "write a folder that transformers or peft read, instead of a file"},
                 {"from", kFolder, "FOLDER",
                  "with --hf: the folder of the model from which the run began, whose configuration "
                  "and tokenizer are copied"},
                 Flag{"dtype", kChoice, "TYPE", "the type of the values in the file"}
                     .Choices({"fp32", "bf16", "fp16"})
                     .Fallback("fp32"),
                 {"replace", kSwitch, "", "with --hf: replace files in a folder that is not empty"}},
       .brief = "write the weights of a run or a checkpoint to a safetensors file",
       .text =
           R"(RUN is a run of the coordinator, by its id or name: its newest version is read from the aggregators,
while the run goes on. CHECKPOINT is the folder of a checkpoint, or a directory of checkpoints, of which
the newest is taken; its run must have been made by 'cadre import'.

Of an imported network, the tensors have the names, extents and order that they had in the ONNX file, so
that load_state_dict accepts them. Otherwise they have the names of the run: LAYER/weight for the layers
of a run file, and the names of the module's parameters for a program of PyTorch. An argument that is
the name of a file or folder here is a CHECKPOINT.

The values of a version are fp32; --dtype rounds them to nearest.

--hf writes the model of a program that trains a model of transformers, so that
AutoModelForCausalLM.from_pretrained(DIR) reads it: model.safetensors, one file of any size, and what
FOLDER has of configuration and tokenizer. Parameters that the run does not train are copied from the
safetensors files of FOLDER. If the program trains an adapter of peft, DIR has that alone, as
adapter_model.safetensors, for PeftModel.from_pretrained(BASE, DIR); FOLDER is then one that has
adapter_config.json, as save_pretrained writes it.
)",
       .examples = R"(  cadre export run-1 -O newest.safetensors
  cadre export my-run --hf out --from base-model --dtype bf16
  cadre export checkpoints -O trained.safetensors
)",
       .run = ExportModel},
      {.name = "certs",
       .arguments = {{.name = "init|issue"},
                     {.name = "ROLE", .optional = true},
                     {.name = "NAME", .optional = true}},
       .flags = {Flag{"ca", kFolder, "DIR", "folder of the authority"}.Fallback("cadre-ca"),
                 {"out", kFolder, "DIR", "folder of the new credentials (default NAME)"},
                 Flag{"trust-domain", kText, "NAME", "with init: trust domain of all identities"}
                     .Fallback("cadre"),
                 {"dns", kText, "NAMES", "host names of a server, separated by commas"},
                 {"ip", kText, "ADDRESSES", "IP addresses of a server, separated by commas"},
                 Flag{"days", kCount, "N", "days until the certificate expires"}
                     .Fallback("365")
                     .Min(1)
                     .Max(36500),
                 {"replace", kSwitch, "",
                  "replace an existing folder; running programs use the new files within seconds"}},
       .brief = "make a certificate authority for development, and issue credentials",
       .text =
           R"(Every program needs credentials, --tls=DIR, unless it runs with --insecure: the folder has ca.crt (the
authorities whose peers are accepted), tls.crt and tls.key. 'init' makes an authority; 'issue ROLE NAME'
makes such a folder for one program or person:

  operator     may call everything         aggregator   NAME must be that of cadre-aggregator --name
  viewer       may only read               worker       any NAME; workers may share it
  coordinator  serves the cluster

Roles and names are in the certificate as spiffe://TRUST_DOMAIN/cadre/ROLE/NAME, so any other authority
that issues such certificates (P-256 or RSA, for servers and clients) can be used as well. Protect the
folder of the authority: who has its key can issue any role.
)",
       .examples = R"(  cadre certs init --ca ca
  cadre certs issue coordinator main --ca ca --dns coordinator.example.org --ip 10.0.0.5
  cadre certs issue worker w1 --ca ca --out tls-w1
  CADRE_TLS=tls-me cadre status --coordinator 10.0.0.5:7000
)",
       .run = ManageCertificates},
      // About the program itself.
      {.name = "completion",
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
       }},
      {.name = "help",
       .arguments = {{.name = "VERB", .kind = kVerb, .optional = true}},
       .brief = "explain a verb",
       .run = [](const Invocation& in) -> absl::StatusOr<int> {
         const std::string name = in.line.argument();
         if (!name.empty() && FindVerb(name) == nullptr) return UnknownVerb(name);
         in.console.out << (name.empty() ? GeneralHelp() : VerbHelp(*FindVerb(name))) << std::flush;
         return kExitOk;
       }},
      {.name = "version",
       .flags = {{"client", kSwitch, "", "print only the version of this program"}},
       .brief = "print the versions of this program and of the coordinator, and of their protocols",
       .run = ShowVersion}};
  return verbs;
}

}  // namespace cadre
