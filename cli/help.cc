#include "cli/help.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

constexpr Verb kVerbs[] = {
    {"local",
     "RUN.textproto [--groups G] [--ranks R] [--aggregators A] [--model_ranks N] [--space_ranks N] "
     "[--collectives POLICY] [--overlap on|off] [--from DIR] [--checkpoint DIR]",
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
  --collectives P   how collectives are chosen: auto (by size and measured links), or always ring,
                    butterfly or halving-doubling, or paper (by kind of layer) (default: the spec's)
  --overlap on|off  whether gradients and weights travel while layers compute (default: the spec's)
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
     "[--space_ranks N] [--collectives POLICY] [--overlap on|off] [--from DIR] "
     "[--checkpoint DIR]",
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
  --collectives P   how collectives are chosen: auto (by size and measured links), or always ring,
                    butterfly or halving-doubling, or paper (by kind of layer) (default: the spec's)
  --overlap on|off  whether gradients and weights travel while layers compute (default: the spec's)
  --from DIR        checkpoint, or directory of them (its newest), to begin from: a path on the
                    machines of workers and aggregators, the same on all of them
  --checkpoint DIR  folder to keep checkpoints in: a path on the workers' machines; one folder for
                    one run

Examples:
  cadre run deploy/demo.textproto --coordinator 10.0.0.5:7000
  id=$(cadre run deploy/demo.textproto --detach) && cadre wait "$id" --timeout 30m
)"},
    {"plan",
     "RUN.textproto --workers P [--batch B] [--alpha S --bandwidth B/S [--gamma S]] "
     "[--collectives POLICY] [--model_ranks N] [--space_ranks N]",
     "show what a group of workers would do, and what it would cost; needs no cluster",
     R"(Shows the mesh, how each layer is split over it, what moves between layers, and the buckets of
parameters whose gradients travel together. With a link it says how each bucket is reduced and how
long that is predicted to take, and what the other policies would take.

A bucket's gradients are summed by a reduce-scatter and its weights gathered by an all-gather;
COMMUNICATION adds these up, one after the other. WERE ALL ALL-REDUCED is what the same buckets
would take if nothing were sharded, which is how papers count.

Flags:
  --workers P         workers of the group
  --batch B           samples of a step (default: the spec's)
  --alpha S           seconds that a message takes however short, such as 50e-6
  --bandwidth B       bytes a second of a worker's link, each way: 10 Gbit/s is 1.25e9
  --gamma S           seconds to add a byte to another (default 0)
  --flops F           floating-point operations a second of a worker: predicts the step, and how much
                      of its communication hides behind computing
  --collectives P     policy: auto, ring, butterfly, halving-doubling or paper (default: the spec's)
  --bucket_elements N elements at which a bucket is full (default: by the link); 1 keeps the layers
                      apart, 0 is no limit
  --model_ranks N     ranks that cut the layers' weights (default: the spec's)
  --space_ranks N     ranks that cut the images' rows (default: the spec's)

Examples:
  cadre plan deploy/demo.textproto --workers 4
  cadre plan spec/zoo/alexnet.textproto --workers 8 --model_ranks 1 --alpha 50e-6 --bandwidth 1.25e9
  cadre plan spec/zoo/alexnet.textproto --workers 8 --model_ranks 1 --alpha 50e-6 \
    --bandwidth 1.25e9 --bucket_elements 1 -o json | jq .policies
)"},
    {"runs", "", "list the runs, old and new", R"(Examples:
  cadre runs
  cadre runs -o json | jq -r '.runs[] | select(.state == "running") | .run'
)"},
    {"status", "[RUN]", "show runs, groups, members and counters",
     R"(With a run id only that run. The JSON form holds coordinator, runs, groups (with generation,
mesh, members, what each holds and its memory by kind, its plan with the link that its ranks
measured and the algorithm of each bucket), workers, aggregators and counters.

Examples:
  cadre status
  cadre status -o json | jq '.groups[] | {group, generation, mesh}'
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
    absl::StrAppendFormat(&out, "  %-9s %s\n", std::string(verb.name), std::string(verb.brief));
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
