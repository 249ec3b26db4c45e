// The table of verbs. A verb's row and its text in cli/help are all that the
// program knows about it; see cli/verb.h.
//
// The first functions return flags that several rows share, or the flags of one row that
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

// The flags of 'cadre probe'.
std::vector<Flag> ProbeFlags() {
  return {Flag{"workers", kCount, "N",
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
          SpaceRanksFlag()};
}

// Verbs that start a run.
std::vector<Verb> RunVerbs() {
  return {
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
       .handles_interrupts = true,
       .run = RunLocal},
      {.name = "run",
       .arguments = {kRunFile},
       .flags = With({{"detach", kSwitch, "", "print the run's id and exit"}}, RunFlags()),
       .brief = "submit a run to a coordinator and follow it",
       .run = SubmitRun}};
}

// Verbs that need no coordinator. Those that start processes handle interrupts themselves.
std::vector<Verb> PlanVerbs() {
  return {
      {.name = "plan",
       .arguments = {{.name = "RUN.textproto|MODEL", .kind = kModel, .optional = true}},
       .flags = PlanFlags(),
       .brief = "show how a group of workers would train a model, and its cost; needs no cluster",
       .run = ShowPlan},
      {.name = "probe",
       .arguments = {kModelArgument},
       .flags = ProbeFlags(),
       .brief = "measure machines and links for a model: writes a profile for 'cadre plan'",
       .handles_interrupts = true,
       .run = ProbeCluster},
      {.name = "formula",
       .arguments = {{.name = "NAME", .optional = true},
                     {.name = "PARAMETER=NUMBER", .repeated = true}},
       .brief = "evaluate a formula of the papers; needs no cluster",
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
       .handles_interrupts = true,
       .run = MeasureEpochs},
      {.name = "replay",
       .arguments = {{.name = "FOLDER", .kind = kFolder, .repeated = true}},
       .brief = "compute the versions of a run again from what its groups have contributed",
       .run = ReplayRun}};
}

// Models as files, and credentials.
std::vector<Verb> FileVerbs() {
  return {
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
       .run = ImportModel},
      {.name = "export",
       .arguments = {{.name = "RUN|CHECKPOINT", .kind = kFolder}},
       .flags =
           {OutputFlag("the file of weights to write").Fallback("weights.safetensors"),
            {"version", kCount, "VERSION",
             "a version that is kept, as 'cadre status' shows; default: the newest"},
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
       .run = ManageCertificates}};
}

// Verbs about the program itself.
std::vector<Verb> ProgramVerbs() {
  return {
      {.name = "completion",
       .arguments = {{.name = "bash|zsh|fish"}},
       .brief = "print a script that completes cadre's command line in a shell",
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
}

}  // namespace

const std::vector<Flag>& GlobalFlags() {
  static const std::vector<Flag> flags = {
      {"coordinator", kText, "HOST:PORT",
       "address of the coordinator, or of several, separated by commas, of which one leads "
       "(default $CADRE_COORDINATOR, otherwise 127.0.0.1:7000)"},
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
  static const std::vector<Verb> verbs = [] {
    std::vector<Verb> all;
    for (const std::vector<Verb>& group :
         {RunVerbs(), PlanVerbs(), QueryVerbs(), OrderVerbs(), FileVerbs(), ProgramVerbs()}) {
      all.insert(all.end(), group.begin(), group.end());
    }
    return all;
  }();
  return verbs;
}

}  // namespace cadre
