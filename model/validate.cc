// The rules that concern a run spec as a whole; validate_*.cc have the rules of its parts.
//
// All problems are reported together, in the order of the fields, so that one attempt shows all of
// them. A rule that depends on the shapes of the model is skipped while the model itself has
// problems. Limits reject values that are surely typing errors and would exhaust the memory of a
// worker hours later.
#include "model/validate.h"
#include "base/counted_noun.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "model/utf8.h"
#include "model/validation.h"
#include "tensor/mesh.h"

namespace cadre {
namespace {

constexpr size_t kMaxRunName = 63;

}  // namespace

std::vector<Problem> Validation::Run() {
  CheckName();
  CheckModel();
  CheckData();
  CheckBatch();
  CheckOptimizer();
  CheckSchedule();
  CheckAveraging();
  CheckCluster();
  CheckStop();
  CheckCheckpoint();
  return std::move(problems_);
}

void Validation::AtMost(absl::string_view field, uint32_t value, uint32_t max) {
  if (value > max) Add(field, "is ", value, "; at most ", max, " is possible");
}

void Validation::AtLeastOne(absl::string_view field, uint32_t value) {
  if (value == 0) Add(field, "is 0; it must be at least 1");
}

void Validation::Finite(absl::string_view field, float value) {
  if (!std::isfinite(value)) Add(field, "is ", value, "; it must be a finite number");
}

void Validation::NotNegative(absl::string_view field, float value) {
  if (std::isfinite(value) && value >= 0.0F) return;
  Add(field, "is ", value, "; it must be a number of at least 0");
}

void Validation::Positive(absl::string_view field, float value) {
  if (std::isfinite(value) && value > 0.0F) return;
  Add(field, "is ", value, "; it must be a number above 0");
}

void Validation::Fraction(absl::string_view field, float value) {
  if (value >= 0.0F && value <= 1.0F) return;
  Add(field, "is ", value, "; it must be from 0 to 1");
}

void Validation::BelowOne(absl::string_view field, float value) {
  if (value >= 0.0F && value < 1.0F) return;
  Add(field, "is ", value, "; it must be at least 0 and below 1");
}

void Validation::Path(absl::string_view field, const std::string& path) {
  if (!IsUtf8(path)) {
    Add(field, Quoted(path), " is not UTF-8; give the path in that encoding");
  } else if (path.find('\0') != std::string::npos) {
    Add(field, Quoted(path), " contains a zero byte");
  }
}

void Validation::NeededPath(absl::string_view field, const std::string& path) {
  if (path.empty()) return Add(field, "is missing; give the path");
  Path(field, path);
}

// Names appear in commands and tables, hence the restricted characters.
void Validation::CheckName() {
  const std::string& name = spec_.name();
  if (name.empty()) {
    Add("name", "is missing; give the run a name of [a-z0-9-]");
  } else if (name.size() > kMaxRunName) {
    Add("name", "has ", name.size(), " characters; at most ", kMaxRunName, " are allowed");
  } else if (!std::all_of(name.begin(), name.end(), [](unsigned char c) {
               return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
             })) {
    Add("name", Quoted(name), " has a character other than [a-z0-9-]");
  }
}

// Reports what shape inference finds, with the path of the field and the name of the layer; the
// graph is kept for the rules that depend on shapes.
void Validation::CheckModel() {
  if (!spec_.has_model()) return Add("model", "is missing; give the input and the layers");
  std::vector<LayerProblem> found;
  InferLayers(spec_.model(), &found);
  for (const LayerProblem& problem : found) {
    std::vector<std::string> path = {"model"};
    std::string layer;
    if (problem.layer >= 0) {
      path.push_back(absl::StrCat("layer[", problem.layer, "]"));
      const std::string& name = spec_.model().layer(problem.layer).name();
      if (problem.field != "name") layer = absl::StrCat("layer '", name, "': ");
    }
    if (!problem.field.empty()) path.push_back(problem.field);
    Add(absl::StrJoin(path, "."), layer, problem.message);
  }
  if (!found.empty()) return;
  auto graph = Graph::FromModel(spec_.model());
  if (!graph.ok()) return Add("model", std::string(graph.status().message()));
  graph_ = *std::move(graph);
  CheckTokenClasses();
}

// The labels of a language model are tokens, so the number of classes equals the vocabulary.
void Validation::CheckTokenClasses() {
  for (const GraphLayer& layer : graph_->layers()) {
    if (layer.kind != LayerKind::kEmbedding) continue;
    const int64_t vocabulary = layer.settings.embedding().vocabulary();
    if (vocabulary == graph_->classes()) continue;
    Add(absl::StrCat("model.layer[", layer.spec_layer, "].embedding.vocabulary"), "layer '",
        layer.name, "': is ", vocabulary, "; the loss has ", graph_->classes(),
        " classes; they must be equal, since each token is a class");
  }
}

// Micro-batches divide a group's batch; zero stands for one.
void Validation::CheckBatch() {
  const uint32_t batch = spec_.batch_per_group();
  AtLeastOne("batch_per_group", batch);
  AtMost("batch_per_group", batch, kMaxBatch);
  if (graph_ && batch <= kMaxBatch) CheckBatchElements();
  if (batch > 0 && spec_.micro_batches() > batch) {
    Add("micro_batches", "is ", spec_.micro_batches(), "; at most the ", Counted(batch, "sample"),
        " of batch_per_group can be computed one by one");
  }
}

// A rank loads its whole part of the batch, independent of micro-batches; ranks that split the
// model load the same part.
void Validation::CheckBatchElements() {
  const int64_t batch = spec_.batch_per_group();
  const int64_t parts =
      std::max(1U, OrOne(spec_.cluster().ranks_per_group()) / RanksAlong(kModelAxis));
  const int64_t max_per_part = kMaxBatchElements / graph_->input().elements();
  if ((batch + parts - 1) / parts <= max_per_part) return;
  Add("batch_per_group", "is ", batch, " samples of ", graph_->input().ToString(), " over ",
      Counted(parts, "rank"), "; a rank's part may have ", kMaxBatchElements,
      " elements, so that at most ", max_per_part * parts, " such samples are possible");
}

// Zero steps mean that a single group trains without averages.
void Validation::CheckAveraging() {
  const v1::Averaging& averaging = spec_.averaging();
  const uint32_t groups = OrOne(spec_.cluster().groups());
  if (averaging.every_steps() == 0 && groups > 1) {
    Add("averaging.every_steps", "is 0, which requires a single group; there are ", groups,
        " groups, give the number of steps between averages");
  }
  if (averaging.quorum() > groups) {
    Add("averaging.quorum", "is ", averaging.quorum(), "; there are only ",
        Counted(groups, "group"));
  }
}

void Validation::Requires(absl::string_view field, uint64_t value, absl::string_view other,
                          const std::string& other_value) {
  if (value > 0 && other_value.empty()) {
    Add(field, "is ", value, ", but ", other, " is not set");
  }
}

// Groups have equal models only after an average, so checkpoints of several groups can only be
// written then.
void Validation::CheckCheckpoint() {
  const v1::Checkpoint& checkpoint = spec_.checkpoint();
  const std::string& directory = checkpoint.directory();
  const std::string& from = checkpoint.from();
  Path("checkpoint.directory", directory);
  Requires("checkpoint.every_steps", checkpoint.every_steps(), "checkpoint.directory", directory);
  Requires("checkpoint.keep", checkpoint.keep(), "checkpoint.directory", directory);
  const uint32_t averaging = spec_.averaging().every_steps();
  const uint32_t over = averaging == 0 ? 0 : checkpoint.every_steps() % averaging;
  if (OrOne(spec_.cluster().groups()) > 1 && over != 0) {
    const uint32_t below = checkpoint.every_steps() - over;
    Add("checkpoint.every_steps", "is ", checkpoint.every_steps(),
        "; groups agree on a model every ", averaging, " steps only, the nearest that fit are ",
        below == 0 ? "" : absl::StrCat(below, " and "), uint64_t{below} + averaging);
  }
  Path("checkpoint.from", from);
  const uint32_t first = checkpoint.from_step();
  Requires("checkpoint.from_step", first, "checkpoint.from", from);
  Requires("checkpoint.from_position", checkpoint.from_position(), "checkpoint.from", from);
  constexpr uint64_t kMaxPosition = uint64_t{1} << 48;
  if (checkpoint.from_position() > kMaxPosition) {
    Add("checkpoint.from_position", "is ", checkpoint.from_position(), "; it must be at most ",
        kMaxPosition);
  }
  if (first > 0 && spec_.stop().steps() > 0 && spec_.stop().steps() <= first) {
    Add("stop.steps", "is ", spec_.stop().steps(), ", but the checkpoint is of step ", first,
        ": nothing is left to train");
  }
}

bool Validation::GivesStop() const {
  const v1::Stop& stop = spec_.stop();
  return stop.epochs() > 0 || stop.steps() > 0 || stop.test_accuracy() != 0.0F;
}

void Validation::CheckStop() {
  if (!GivesStop()) {
    return Add("stop", "has no rule to end the run; give epochs, steps or test_accuracy");
  }
  const float accuracy = spec_.stop().test_accuracy();
  if (accuracy != 0.0F && !(accuracy > 0.0F && accuracy <= 1.0F)) {
    Add("stop.test_accuracy", "is ", accuracy, "; it must be above 0 and at most 1");
  }
}

std::vector<Problem> FindProblems(const v1::RunSpec& spec) { return Validation(spec).Run(); }

absl::Status ValidateRunSpec(const v1::RunSpec& spec) { return StatusOf(FindProblems(spec)); }

}  // namespace cadre
