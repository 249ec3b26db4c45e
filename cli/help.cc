#include "cli/help.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

constexpr Verb kVerbs[] = {
    {"local",
     "RUN.textproto [--groups G] [--ranks R] [--aggregators A] [--model_ranks N] [--space_ranks N] "
     "[--mesh AXES] [--layer PINS] [--collectives POLICY] [--overlap on|off] "
     "[--device D] [--precision P] [--from DIR] "
     "[--checkpoint DIR]",
     "train on this machine: start a whole cluster, follow the run, end it",
     R"(Checks the run spec and the data, then starts a coordinator, A aggregators and G times R
workers as processes of their own on loopback ports that the kernel picks, submits the run, shows
how it gets on, and ends every process when the run is over or on Ctrl-C. A process that dies is
started again, and the run goes on.

Progress goes to stderr, the summary to stdout; with -o json the last line of stdout is one JSON
object. Exit code 0 only when the run reached its stop rule.

Flags:
  --groups G        groups that train side by side and average (default: the spec's)
  --ranks R         workers in each group (default: the spec's)
  --aggregators A   shards that average (default: the spec's, else 1; 0 only if it never averages)
  --model_ranks N   ranks of a group that cut the layers' weights (default: the spec's)
  --space_ranks N   ranks of a group that cut the images' rows (default: the spec's)
  --mesh AXES       the group's mesh, such as data=4,space=1,model=2: pins what the planner would
                    choose; sets --ranks to the product (default: the spec's)
  --layer PINS      how layers are cut, such as fc6=model,conv1=data: data, model, model-in or
                    domain (default: the spec's, else the planner's choice)
  --collectives P   how collectives are chosen: auto (by size and measured links), or always ring,
                    butterfly or halving-doubling, or paper (by kind of layer), or native (NCCL's
                    own; needs --device cuda) (default: the spec's)
  --overlap on|off  whether gradients and weights travel while layers compute (default: the spec's)
  --device D        what workers compute on: cpu, cuda (the first GPU) or cuda:N; all of them share
                    that GPU (default: the spec's)
  --precision P     fp32, tf32 or bf16; the last two need GPUs (default: the spec's)
  --from DIR        checkpoint, or directory of them (its newest), to begin from
  --checkpoint DIR  folder to keep checkpoints in; one folder for one run
  --threads N       compute threads of each worker (default 1)
  --dir DIR         keep store, data and logs in DIR (default: a temporary folder, removed unless
                    the run fails)
  --norestart       a process that dies ends the run
  --lease_ms N      a worker that is silent for so long is taken for lost (default 5000)

Examples:
  cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2
  cadre local deploy/demo.textproto --groups 1 --ranks 4 --space_ranks 2 --model_ranks 2
  cadre local deploy/demo.textproto -o json | tail -n 1 | jq .test_accuracy
)"},
    {"run",
     "RUN.textproto [--detach] [--groups G] [--ranks R] [--aggregators A] [--model_ranks N] "
     "[--space_ranks N] [--mesh AXES] [--layer PINS] [--collectives POLICY] [--overlap on|off] "
     "[--device D] [--precision P] [--from DIR] [--checkpoint DIR]",
     "submit a run to a coordinator and follow it",
     R"(The workers of the cluster train it as soon as enough of them are idle. Ctrl-C stops
following and leaves the run going. Exit code 0 only when the run reached its stop rule.

Flags:
  --detach          print the run's id and leave
  --groups G        groups that train side by side and average (default: the spec's)
  --ranks R         workers in each group (default: the spec's)
  --aggregators A   shards that average (default: the spec's, else all that are there)
  --model_ranks N   ranks of a group that cut the layers' weights (default: the spec's)
  --space_ranks N   ranks of a group that cut the images' rows (default: the spec's)
  --mesh AXES       the group's mesh, such as data=4,space=1,model=2: pins what the planner would
                    choose; sets --ranks to the product (default: the spec's)
  --layer PINS      how layers are cut, such as fc6=model,conv1=data: data, model, model-in or
                    domain (default: the spec's, else the planner's choice)
  --collectives P   how collectives are chosen: auto (by size and measured links), or always ring,
                    butterfly or halving-doubling, or paper (by kind of layer), or native (NCCL's
                    own; needs --device cuda) (default: the spec's)
  --overlap on|off  whether gradients and weights travel while layers compute (default: the spec's)
  --device D        what workers must compute on: cpu or cuda (default: the spec's, else either);
                    which GPU is each worker's own --device
  --precision P     fp32, tf32 or bf16; the last two need GPUs (default: the spec's)
  --from DIR        checkpoint, or directory of them (its newest), to begin from: a path on the
                    machines of workers and aggregators, the same on all of them
  --checkpoint DIR  folder to keep checkpoints in: a path on the workers' machines; one folder for
                    one run

Examples:
  cadre run deploy/demo.textproto --coordinator 10.0.0.5:7000
  id=$(cadre run deploy/demo.textproto --detach) && cadre wait "$id" --timeout 30m
)"},
    {"plan",
     "RUN.textproto|MODEL --workers P [--batch B] [--alpha S --bandwidth B/S | --profile FILE] "
     "[--strategy NAME] [--compare NAMES] [--mesh AXES] [--layer PINS] [--memory BYTES] "
     "[--epochs FILE]\n"
     "       cadre plan --placement GRAPH.textproto [--solver_seconds S]",
     "show what a group of workers would do, what it would cost, and why; needs no cluster",
     R"(Searches the fastest way for a group to train a model: the mesh of its ranks, how each layer is
split over it, what moves between layers, and the buckets of parameters whose gradients travel
together. For each layer it shows what it computes, moves and keeps, and the best other way to cut
it. MODEL is a model of the zoo, such as alexnet. Without a link nothing can be predicted, and the
plan is the one that a group has before it has measured anything.

A strategy other than auto is one of the papers': its own formulas count, for words and seconds
alike, and what Cadre's engine would do stands beside them. --compare puts strategies side by side.
The formulas know neither overlap nor pinned layers; where these are in play, auto is held against the
papers' strategies in Cadre's engine alone.

"sums exactly" (in JSON: exact) says that of all ways to cut the layers, on all meshes, none has a
lesser sum of what layers and the moves between them take. With --flops or --profile communication
overlaps with computing, a step is no such sum, and the best that the search came across is taken.

A bucket's gradients are summed by a reduce-scatter and its weights gathered by an all-gather;
COMMUNICATION adds these up, one after the other. WERE ALL ALL-REDUCED is what the same buckets
would take if nothing were sharded, which is how papers count.

With --placement it places the operators of a graph on devices instead, so that the last ends as early
as can be: an integer programme where the graph is small enough (some 16 operators close in a second
or two), list scheduling where it is not, and in any case the gap to what no placement can beat. A
graph is a text file of op { name: "a" seconds: 2 memory_bytes: 0 }, edge { from: "a" to: "b" bytes: 8 },
device { name: "gpu0" memory_bytes: 0 }, switch: "s" and link { from: "gpu0" to: "s" alpha: 1e-6
bandwidth: 1e9 }; deploy/diamond.textproto is one, proto/cadre/v1/placement.proto says it all.

Flags:
  --workers P         workers of the group, up to 100,000
  --batch B           samples of a step (default: the spec's)
  --alpha S           seconds that a message takes however short, such as 50e-6
  --bandwidth B       bytes a second of a worker's link, each way: 10 Gbit/s is 1.25e9
  --gamma S           seconds to add a byte to another (default 0)
  --flops F           floating-point operations a second of a worker: predicts the step, and how much
                      of its communication hides behind computing
  --profile FILE      a cluster profile, as 'cadre probe' writes it: links, speeds, memory
  --memory BYTES      of a worker; a plan that needs more is none
  --strategy NAME     batch, model, uniform-grid, conv-batch-fc-grid, conv-domain-fc-grid,
                      group-hybrid, or auto (the default): every way there is
  --compare NAMES     such as data,model,uniform-grid,hybrid,auto, or all: a table of them, and how
                      much faster auto is than the best of the papers'
  --mesh AXES         pins the mesh, such as data=4,model=2 (axes data, space, model); the answer
                      says what the pin costs. With a strategy of the papers: its grid
  --layer PINS        pins layers, such as fc6=model,fc7=model-in,conv1=domain,fc8=data; not with a
                      strategy of the papers on --alpha and --bandwidth
  --epochs FILE       a table of epochs, as 'cadre measure-epochs' writes it: predicts the time to
                      its target, and whether a smaller batch on a split model is there sooner
  --samples N         samples of a pass over the data (default: the spec's, where it says so)
  --groups G          also say how many groups the workers should make, up to G, and how often they
                      should average; each does steps of --batch. With --profile and --epochs it is
                      said unasked: as many groups as are soonest at the target, of hosts that lie
                      together, and whether splitting the model pays more than more groups
  --sensitivity       search what would change the answer: bandwidth, batch, memory (default: if
                      that takes no time; --nosensitivity never)
  --collectives P     policy: auto, ring, butterfly, halving-doubling, paper or native (of specs with
                      cluster.device: CUDA) (default: the spec's)
  --bucket_elements N elements at which a bucket is full (default: by the link); 1 keeps the layers
                      apart, 0 is no limit
  --model_ranks N     ranks that cut the layers' weights (default: the spec's)
  --space_ranks N     ranks that cut the images' rows (default: the spec's)
  --placement FILE    an operator graph to place, in the place of a spec
  --solver_seconds S  give the solver up after S seconds and take the best found (default 10)

Examples:
  cadre plan deploy/demo.textproto --workers 4
  cadre plan --placement deploy/diamond.textproto
  cadre plan --placement deploy/diamond.textproto -o json | jq '.makespan, .placement'
  cadre plan alexnet --workers 512 --batch 2048 --alpha 2e-6 --bandwidth 6e9 --compare all
  cadre plan alexnet --workers 512 --batch 2048 --alpha 2e-6 --bandwidth 6e9 \
    --strategy uniform-grid --mesh data=128,model=4 -o json | jq .words_per_rank
  cadre plan vgg16 --workers 64 --profile rack.profile -o json | jq '.step_seconds, .mesh'
  cadre plan alexnet --workers 8 --model_ranks 1 --alpha 50e-6 --bandwidth 1.25e9 \
    --bucket_elements 1 -o json | jq .policies
)"},
    {"probe",
     "RUN.textproto|MODEL [--workers N] [--threads N] [--batch B] [--peers H:P,... --rank R] "
     "[--meet_timeout T] [-O FILE] [--fresh] [--cache DIR]",
     "measure machines and links for a model: a profile that 'cadre plan' reads",
     R"(N worker processes on this machine time the model's layers at the same time, as they will
compute: every way to cut a layer that a plan for 1, 2, 4, ... workers is likely to ask for, without
any other rank. Then they measure what lies between them. The profile is text: edit it, to ask what
other machines or links would change.

With --peers every host runs the same command, each with its --rank; when their layers are timed one
process of each measures the links between all pairs of hosts, in rounds in which each host has one
partner, over plain TCP at the addresses given. Only the host of rank 0 writes the profile.

What was measured of a machine is kept, by hardware, model, batch, workers and threads, and taken
from there the next time; links between hosts are measured each time.

Flags:
  --workers N         worker processes on this machine (default 1)
  --threads N         compute threads of each (default 1)
  --batch B           samples of a step (default: the spec's)
  --peers H:P,...     host:port of every host, by rank: free ports that the others reach
  --rank R            this host among them (default 0)
  --meet_timeout T    how long to wait, when this host's layers are timed, until all have come
                      (default 60s); what was measured here is kept for the next try
  -O, --output FILE   where to write the profile, and show a summary instead (default: stdout)
  --fresh             measure again what was measured before
  --cache DIR         what was measured before (default: cadre in $XDG_CACHE_HOME or ~/.cache)
  --mesh, --layer, --model_ranks, --space_ranks
                      as of 'cadre run': leave out what these rule out

Gives up after 30 minutes unless --timeout says otherwise. With -o json the profile is one object.

Examples:
  cadre probe alexnet --batch 32 --workers 4 -O here.profile
  cadre plan alexnet --batch 32 --workers 4 --profile here.profile
  cadre probe vgg11 --peers 10.0.0.5:7100,10.0.0.6:7100 --rank 0 -O rack.profile
)"},
    {"formula", "[NAME PARAMETER=NUMBER ...]",
     "evaluate one of the papers' formulas; needs no cluster",
     R"(Without words it lists the formulas with their parameters and sources. Those of whole models are
in 'cadre plan --strategy'. Ranks, groups and devices go up to 1,048,576, other counts to 9e15; numbers
whose answer would not be finite are refused.

group-hybrid takes a network layer by layer, `convolutions` of them first; grid and batch-limit take a
layer without `inputs` as the first one, whose input has no gradient. Words are fp32.

Examples:
  cadre formula
  cadre formula ring ranks=8 bytes=139392 alpha=50e-6 bandwidth=1.25e9
  cadre formula hybrid-rule devices=2 epochs=4 more_epochs=7 speedup=1.32 -o json
  cadre formula overlap forward=10,10,2,2 backward=60,60,4,4 communication=3,3,40,10
)"},
    {"measure-epochs",
     "RUN.textproto --target ACCURACY --workers 1,2,4,8 [--batch B] [--max_epochs E] "
     "[--rate linear|sqrt|none] [-O FILE]",
     "measure how many epochs training takes by the number of workers",
     R"(Larger steps are fewer, but a model takes more epochs of them. For each number N of workers this
trains the model on this machine, by one worker that does in a step what N workers of B samples each
would do together: it takes N parts one behind the other, adds their gradients, and updates once.
Only the time of a step differs from that of N workers, and that is not what is measured. A run ends
when an evaluation has the accuracy of --target; evaluations come once an epoch, and between two of
them accuracy is taken to be a straight line, so a target is met at a fraction of an epoch.

The learning rate follows the samples of a step, k times those of the spec's step: by --rate linear
it is k times the spec's, by sqrt (fit for AdamW) the square root of k times, by none the same. The
spec's warm-up and step decay last as many samples as before; a rate that is raised without a warm-up
in the spec climbs over as many samples as 100 of the spec's steps.

The table goes to stdout and, as text that 'cadre plan --epochs' reads, into FILE after each run. Run
again with the same FILE it measures only what is missing; spec.seed apart is another entry.

Flags:
  --target A          test accuracy to reach, in (0, 1]
  --workers N,N,...   numbers of workers
  --batch B           samples of one worker's step (default: the spec's batch_per_group)
  --max_epochs E      give a run up after E epochs, and say so in the table (default: the spec's
                      stop.epochs)
  --rate RULE         linear (default), sqrt or none
  -O, --output FILE   where the table is kept
  --threads N         compute threads of the worker (default 1)

Examples:
  cadre measure-epochs deploy/demo.textproto --target 0.88 --workers 1,2,4,8 -O epochs.textproto
  cadre plan deploy/demo.textproto --workers 16 --epochs epochs.textproto
)"},
    {"runs", "", "list the runs, old and new", R"(Examples:
  cadre runs
  cadre runs -o json | jq -r '.runs[] | select(.state == "running") | .run'
)"},
    {"status", "[RUN]", "show runs, groups, members and counters",
     R"(With a run id only that run. The JSON form holds coordinator, runs, groups (with generation,
mesh, members, what each holds and its memory by kind, its plan with the link that its ranks
measured and the algorithm of each bucket; what a step was predicted to take and takes, by part, and
what was wrong with a prediction that is off), workers, aggregators and counters.

Where two groups or more average, a line says how far they drift apart between averages: the mean
over groups of |w_g - w|^2 / |w - w_before|^2, of the newest round and smoothed over rounds. It is 0
where all groups move alike, G - 1 where G groups share nothing but noise; up to 1, more groups
may be tried. The advice also keeps the steps between averages within what is proved of local SGD for
a run of so many steps.

Examples:
  cadre status
  cadre status -o json | jq '.groups[] | {group, generation, mesh}'
  cadre status -o json | jq '.groups[] | {predicted, measured, prediction_error, prediction_blame}'
  cadre status -o json | jq '.groups[].plan | {link, algorithms: [.buckets[].algorithm]}'
)"},
    {"watch", "[RUN]", "one line per change, until the run ends",
     R"(Without a run it shows all runs until you leave. With -o json it prints one object per line,
which is what plotting scripts read.

Examples:
  cadre watch
  cadre watch run-1 -o json | jq -c '.run | {step, loss}'
  cadre watch run-1 -o json | bench/plot_run.py -o run.png
)"},
    {"members", "", "list workers and aggregators, with heartbeats", R"(Examples:
  cadre members
  cadre members -o json | jq '.workers | length'
)"},
    {"stop", "RUN", "end a run at once; its last version stays", R"(Examples:
  cadre stop run-1
)"},
    {"wait", "RUN [--timeout T]", "wait for the end of a run",
     R"(Exit code 0 when the run reached its stop rule, 1 when it failed or was stopped, 3 when there
is no such run, 4 when the time was over.

Examples:
  cadre wait run-1 --timeout 30m && echo trained
)"},
    {"trace", "RUN [--group G] [--steps N] [-O FILE]",
     "record some steps of a group: who computed and who waited",
     R"(Every rank of the group records its next N steps: each operation, each collective, each wait.
The trace is written to FILE in Chrome's format; https://ui.perfetto.dev and chrome://tracing show
it, one process for each rank, one line for its own thread and one for its communication. The table
tells, for each rank and per step, how long the step took, computing, moving activations between
ranks, collectives in the background, and how long the rank waited for those with nothing else to do.

Times are those of each host's own clock: compare what one rank did, and ranks on one host; between
hosts the clocks may differ by more than a step takes.

Training goes on meanwhile, a little slower. One trace of a group at a time. Waits for two minutes
unless --timeout says otherwise; a group at a round's boundary waits for its round first.

Flags:
  --group G           the group (default 0)
  --steps N           how many steps, 1 to 100 (default 3)
  -O, --output FILE   where to write it (default trace-RUN.json); - is stdout, and the table goes to
                      stderr then

Examples:
  cadre trace run-1
  cadre trace run-1 --group 1 --steps 10 -O step.json
  cadre trace run-1 -o json | jq '.ranks[] | {rank, step_seconds, exposed_share}'
)"},
    {"help", "[VERB]", "explain a verb", ""},
    {"version", "", "print the version of this program and its protocol", ""},
};

constexpr char kGlobalFlags[] = R"(Flags of every verb:
  --coordinator H:P   where the coordinator is (default 127.0.0.1:7000)
  -o table|json       form of what goes to stdout (default table)
  --timeout T         give up after T, such as 90s or 5m
  --quiet             no progress and no hints on stderr
  --color WHEN        auto (on terminals, the default) or never
)";

}  // namespace

std::span<const Verb> Verbs() { return kVerbs; }

const Verb* FindVerb(absl::string_view name) {
  for (const Verb& verb : kVerbs) {
    if (verb.name == name) return &verb;
  }
  return nullptr;
}

std::string GeneralHelp() {
  std::string out =
      "Cadre trains one model on many machines whose links are slow.\n\n"
      "Usage: cadre VERB [words] [flags]\n\nVerbs:\n";
  for (const Verb& verb : kVerbs) {
    absl::StrAppendFormat(&out, "  %-14s %s\n", std::string(verb.name), std::string(verb.brief));
  }
  absl::StrAppend(&out, "\n", kGlobalFlags,
                  "\nTry it:\n"
                  "  cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2\n"
                  "\n'cadre help VERB' says more, with examples.\n"
                  "Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 unavailable or out of "
                  "time, 130 Ctrl-C.\n");
  return out;
}

std::string VerbHelp(const Verb& verb) {
  return absl::StrCat("cadre ", verb.name, ": ", verb.brief, "\n\nUsage: cadre ", verb.name,
                      verb.usage.empty() ? "" : " ", verb.usage, " [flags]\n",
                      verb.text.empty() ? "" : "\n", verb.text, "\n", kGlobalFlags);
}

}  // namespace cadre
