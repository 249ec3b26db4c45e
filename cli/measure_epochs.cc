// The table is measured one entry at a time, and each entry is written to the file before the next
// run starts, because a run takes minutes to hours. A second call with the same file measures only
// the missing entries. The file is only extended if it belongs to the same measurement: model,
// target, batch and a digest of everything else that influences training (RecipeDigest) must agree.
#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/counted_noun.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/cluster_run.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/spec_file.h"
#include "cli/table.h"
#include "lab/emulation.h"
#include "lab/time_to_accuracy.h"
#include "model/validate.h"
#include "plan/cluster_profile.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {
namespace {

struct MeasureOptions {
  // Numbers of workers, ascending, without duplicates.
  std::vector<uint32_t> workers;
  // The emulation of one worker.
  Emulation emulation;
  // How the processes are run.
  LocalClusterOptions cluster;
  // File of the table; entries that it already has are not measured again. Empty: no file.
  std::string output;
};

// The table in the output file, or an empty one if there is no file. A file of an earlier call is
// continued, never overwritten by another measurement.
absl::StatusOr<v1::EpochsTable> LoadTable(const MeasureOptions& options, const v1::RunSpec& spec) {
  v1::EpochsTable table;
  table.set_recipe(RecipeDigest(spec, options.emulation));
  table.set_model(ModelKey(spec.model()));
  table.set_target_accuracy(options.emulation.target);
  table.set_batch_per_worker(options.emulation.batch);
  std::error_code error;
  if (options.output.empty() || !std::filesystem::exists(options.output, error)) return table;
  CADRE_ASSIGN_OR_RETURN(v1::EpochsTable saved, ReadEpochsTable(options.output));
  const auto differs = [&](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(options.output, " holds a table of another ",
                                                      what,
                                                      "; use another -O, or remove the file"));
  };
  if (saved.model() != table.model()) return differs("model");
  if (saved.target_accuracy() != table.target_accuracy()) return differs("target");
  if (saved.batch_per_worker() != table.batch_per_worker()) return differs("batch");
  if (saved.recipe() != table.recipe()) {
    return differs(
        "recipe: --rate, --max-epochs, or the run's data, optimizer, schedule or initial weights "
        "differ");
  }
  return saved;
}

// Entries of different seeds coexist, so that their spread can be seen.
bool Contains(const v1::EpochsTable& table, uint32_t workers, uint64_t seed) {
  return std::any_of(table.entry().begin(), table.entry().end(), [&](const v1::EpochsEntry& entry) {
    return entry.workers() == workers && entry.seed() == seed;
  });
}

// The runs for all numbers of workers; all are checked before the first one starts.
absl::StatusOr<std::vector<v1::RunSpec>> EmulatedSpecs(const MeasureOptions& options,
                                                       const v1::RunSpec& spec) {
  if (spec.checkpoint().from_step() > 0) {
    return absl::InvalidArgumentError(
        "checkpoint.from is a checkpoint of a run, but epochs are counted from the start of "
        "training; "
        "a *.safetensors file can be given as initial weights");
  }
  if (options.emulation.max_epochs == 0) {
    return absl::InvalidArgumentError(
        "missing --max-epochs: the run file has no stop.epochs, so a run that never reaches the "
        "target would not end");
  }
  Emulation emulation = options.emulation;
  std::vector<v1::RunSpec> specs;
  for (const uint32_t workers : options.workers) {
    const uint64_t samples = uint64_t{workers} * emulation.batch;
    if (samples > kMaxBatch) {
      return absl::InvalidArgumentError(
          absl::StrCat(Counted(workers, "worker"), " of ", emulation.batch, " samples each are ",
                       samples, " samples per step, at most ", kMaxBatch, " are supported"));
    }
    emulation.workers = workers;
    specs.push_back(EmulatedSpec(spec, emulation));
    if (const absl::Status status = ValidateRunSpec(specs.back()); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("with ", Counted(workers, "worker"), ": ", status.message()));
    }
  }
  return specs;
}

// If a run meets the target at its first evaluation, it may have met it earlier; the text says so.
std::string OutcomeText(const v1::EpochsEntry& entry, const EpochsToTarget& measured) {
  if (!entry.reached()) {
    return absl::StrFormat("not reached in %.4g epochs: test accuracy is %.4f", entry.epochs(),
                           measured.accuracy());
  }
  return absl::StrFormat("%.3g epochs%s", entry.epochs(),
                         measured.is_upper_bound()
                             ? ", or fewer: the first observed evaluation reached the target"
                             : "");
}

// How the run for one number of workers ended, and its entry, which is valid if end.done().
struct Measured {
  ClusterRunEnd end;
  v1::EpochsEntry entry;
};

Measured Measure(const MeasureOptions& options, const v1::RunSpec& spec, uint32_t workers,
                 absl::Time deadline, Progress& progress) {
  progress.Note(
      absl::StrFormat("%s: %d samples per step in %s, learning rate %.4g, target accuracy %.4g",
                      Counted(workers, "worker"), spec.batch_per_group(),
                      Counted(spec.micro_batches(), "micro-batch", "micro-batches"),
                      spec.schedule().base_rate(), options.emulation.target));
  // The target rounded to float, as the run compares it.
  EpochsToTarget epochs(spec.stop().test_accuracy());
  Measured measured;
  measured.end = RunOnCluster(spec,
                              {.cluster = options.cluster,
                               .deadline = deadline,
                               .on_update = [&](const v1::RunStatus& run) { epochs.Observe(run); }},
                              progress);
  if (!measured.end.done()) return measured;
  measured.entry.set_workers(workers);
  measured.entry.set_seed(spec.seed());
  measured.entry.set_reached(epochs.reached());
  measured.entry.set_epochs(epochs.reached() ? epochs.epochs() : measured.end.summary.run.epoch());
  progress.Note(
      absl::StrCat(Counted(workers, "worker"), ": ", OutcomeText(measured.entry, epochs)));
  return measured;
}

std::string TableText(const v1::EpochsTable& table) {
  Table text({"WORKERS", "BATCH", "EPOCHS", "REACHED", "SEED"});
  for (const v1::EpochsEntry& entry : table.entry()) {
    text.AddRow({absl::StrCat(entry.workers()),
                 absl::StrCat(uint64_t{entry.workers()} * table.batch_per_worker()),
                 absl::StrFormat("%.3g", entry.epochs()), entry.reached() ? "yes" : "no",
                 absl::StrCat(entry.seed())});
  }
  return text.Text();
}

// "1,2,4,8", in any order; returns them sorted, without duplicates. Errors: UsageError.
absl::StatusOr<std::vector<uint32_t>> ParseWorkers(absl::string_view text) {
  std::set<uint32_t> workers;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(word, &number) || number == 0) {
      return UsageError(
          absl::StrCat("--workers takes positive numbers such as 1,2,4,8, not '", text, "'"));
    }
    workers.insert(number);
  }
  return std::vector<uint32_t>(workers.begin(), workers.end());
}

// The options, without the numbers of workers. Batch and epochs default to those of the run file.
absl::StatusOr<MeasureOptions> OptionsOf(const CommandLine& line, const v1::RunSpec& spec) {
  MeasureOptions options{
      .emulation = {.batch = line.Get<uint32_t>("batch").value_or(spec.batch_per_group()),
                    .rate = *RateRuleFromName(line.Value<std::string>("rate")),
                    .target = static_cast<float>(line.Value<double>("target")),
                    .max_epochs = line.Get<uint32_t>("max-epochs").value_or(spec.stop().epochs())},
      .cluster = {.threads = line.Value<uint32_t>("threads")},
      .output = line.Get<std::string>("output").value_or("")};
  CADRE_ASSIGN_OR_RETURN(options.cluster.programs, ProgramsFolder());
  return options;
}

}  // namespace

absl::StatusOr<int> MeasureEpochs(const Invocation& in) {
  const Console& console = in.console;
  CADRE_ASSIGN_OR_RETURN(std::vector<uint32_t> workers,
                         ParseWorkers(in.line.Value<std::string>("workers")));
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(in.line.argument(), {});
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  const v1::RunSpec& spec = loaded->spec;
  CADRE_ASSIGN_OR_RETURN(MeasureOptions options, OptionsOf(in.line, spec));
  options.workers = std::move(workers);
  const absl::StatusOr<std::vector<v1::RunSpec>> specs = EmulatedSpecs(options, spec);
  if (!specs.ok()) return Fail(console, specs.status());
  absl::StatusOr<v1::EpochsTable> table = LoadTable(options, spec);
  if (!table.ok()) return Fail(console, table.status());

  BlockInterrupts();
  Progress progress(console.err, ProgressOnErr(in.global, console));
  const absl::Time deadline = DeadlineOf(in.global, absl::Now());
  for (size_t i = 0; i < options.workers.size(); ++i) {
    const uint32_t count = options.workers[i];
    if (Contains(*table, count, spec.seed())) {
      progress.Note(absl::StrCat(Counted(count, "worker"), ": already in ", options.output));
      continue;
    }
    const Measured measured = Measure(options, (*specs)[i], count, deadline, progress);
    if (!measured.end.done()) return ReportFailure(measured.end, console);
    *table->add_entry() = measured.entry;
    if (options.output.empty()) continue;
    const std::string text = PrintEpochsTable(*table, spec.name());
    if (const absl::Status saved = WriteFileAtomically(options.output, text); !saved.ok()) {
      return Fail(console, saved);
    }
  }
  Print(ToJson(*table), TableText(*table), in.global, console);
  return kExitOk;
}

}  // namespace cadre
