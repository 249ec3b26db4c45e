// All problems are reported together, in the order of the fields, so that one attempt shows all of
// them. A rule that depends on the shapes of the model is skipped while the model itself has
// problems. Limits reject values that are surely typing errors and would exhaust the memory of a
// worker hours later.
#include "model/validate.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/counted_noun.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/graph.h"
#include "model/kept_versions.h"
#include "model/outer_optimizer.h"
#include "model/screen.h"
#include "model/shard_copies.h"
#include "model/validation_parts.h"
#include "proto/long_text.h"
#include "tensor/mesh.h"

namespace cadre {
namespace {

constexpr size_t kMaxRunName = 63;
constexpr int64_t kMaxPriority = 1000;
constexpr uint32_t kMaxOuterRounds = 1 << 20;
constexpr uint32_t kMaxFragments = 64;
constexpr size_t kMaxParameterName = 256;
constexpr size_t kMaxFrozenDigest = 64;
constexpr int64_t kMaxOpaqueElements = int64_t{1} << 40;
constexpr uint64_t kMaxOpaqueSamples = uint64_t{1} << 40;
// Every aggregator has 24 bytes for each unit of the model.
constexpr int64_t kMaxUnitElements = int64_t{1} << 36;

class Validation : private SpecChecker {
 public:
  using SpecChecker::SpecChecker;

  std::vector<Problem> Run() {
    CheckSize();
    // The other rules take time and memory in proportion to what they check.
    if (!problems_.empty()) return std::move(problems_);
    CheckName();
    CheckPriority();
    if (opaque()) {
      CheckOpaqueModel();
    } else {
      CheckModel();
      Include(DataProblems(spec_, graph_));
    }
    CheckBatch();
    if (!opaque()) Include(OptimizerProblems(spec_));
    CheckAveraging();
    Include(ClusterProblems(spec_, graph_));
    CheckStop();
    CheckCheckpoint();
    CheckEvaluation();
    return std::move(problems_);
  }

 private:
  void Include(std::vector<Problem> found) {
    problems_.insert(problems_.end(), found.begin(), found.end());
  }

  // ---- The spec as a whole

  void CheckSize() {
    const size_t limit = opaque() ? kMaxOpaqueSpecBytes : kMaxSpecBytes;
    if (const size_t bytes = spec_.ByteSizeLong(); bytes > limit) {
      const std::string parameters =
          opaque() ? absl::StrCat(" with ", spec_.model().opaque().parameter_size(), " parameters")
                   : "";
      return Add("spec", "has ", bytes, " bytes", parameters, "; at most ", limit, " are allowed");
    }
    if (const auto text = FindLongText(spec_, kMaxSpecText)) {
      Add(text->field, "has ", text->bytes, " bytes; at most ", kMaxSpecText, " are allowed");
    }
  }

  void CheckPriority() {
    if (std::abs(int64_t{spec_.priority()}) <= kMaxPriority) return;
    Add("priority", "is ", spec_.priority(), "; from -", kMaxPriority, " to ", kMaxPriority,
        " are possible");
  }

  // Names appear in commands and tables, hence the restricted characters.
  void CheckName() {
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

  bool opaque() const { return spec_.model().has_opaque(); }

  void CheckOpaqueParameters(const v1::OpaqueModel& model) {
    if (model.parameter().empty()) Add("model.opaque.parameter", "is missing; give at least one");
    std::set<absl::string_view> names;
    int64_t elements = 0;
    bool all_frozen = true;
    for (int i = 0; i < model.parameter_size(); ++i) {
      const v1::OpaqueParameter& parameter = model.parameter(i);
      const std::string field = absl::StrCat("model.opaque.parameter[", i, "]");
      if (parameter.name().empty() || parameter.name().size() > kMaxParameterName) {
        Add(field + ".name", "has ", parameter.name().size(), " characters; give 1 to ",
            kMaxParameterName);
      } else if (!names.insert(parameter.name()).second) {
        Add(field + ".name", "is ", Quoted(parameter.name()), " once more; names must be unique");
      }
      const bool frozen = !parameter.frozen_digest().empty();
      if (frozen && parameter.has_trained()) {
        Add(field + ".trained", "cannot be combined with frozen_digest");
      }
      if (parameter.frozen_digest().size() > kMaxFrozenDigest) {
        Add(field + ".frozen_digest", "has ", parameter.frozen_digest().size(),
            " characters; at most ", kMaxFrozenDigest, " are possible");
      }
      all_frozen = all_frozen && frozen;
      int64_t size = 1;
      for (const uint64_t extent : parameter.shape()) {
        const bool too_large =
            extent > 0 &&
            size > kMaxOpaqueElements / static_cast<int64_t>(std::min<uint64_t>(extent, INT64_MAX));
        size = too_large ? kMaxOpaqueElements + 1 : size * static_cast<int64_t>(extent);
      }
      if (size == 0) Add(field + ".shape", "has no elements");
      if (!frozen) elements = std::min(elements + size, kMaxOpaqueElements + 1);
    }
    if (all_frozen && !model.parameter().empty()) {
      Add("model.opaque.parameter", "has only frozen parameters, so there is nothing to exchange");
    }
    if (elements > kMaxOpaqueElements) {
      Add("model.opaque", "has more than the ", kMaxOpaqueElements, " elements that are possible");
    } else if (elements > kMaxUnitElements && ExchangesUnits(spec_.averaging())) {
      Add("model.opaque", "has more than the ", kMaxUnitElements,
          " elements that are possible with averaging.up, averaging.down or averaging.fragments");
    }
  }

  void CheckOpaqueModel() {
    const v1::OpaqueModel& model = spec_.model().opaque();
    CheckOpaqueParameters(model);
    const auto excluded = [this](absl::string_view field, bool is_set) {
      if (is_set) Add(field, "cannot be combined with model.opaque, whose programs determine it");
    };
    const v1::Model& whole = spec_.model();
    excluded("model.layer", whole.layer_size() > 0 || whole.has_input() || whole.has_tokens());
    excluded("data", spec_.has_data());
    excluded("precision", spec_.precision() > v1::RunSpec::FP32);
    excluded("optimizer", spec_.has_optimizer());
    excluded("schedule", spec_.has_schedule());
    excluded("checkpoint.directory", !spec_.checkpoint().directory().empty());
    if (spec_.averaging().every_steps() == 0) {
      Add("averaging.every_steps", "is 0; programs with a loop of their own can only be averaged");
    }
    if (spec_.stop().steps() == 0 && model.epoch_samples() == 0) {
      Add("model.opaque.epoch_samples", "is missing; a run without it must end by stop.steps");
    }
    if (spec_.stop().test_accuracy() != 0 && model.test_samples() == 0) {
      Add("stop.test_accuracy", "requires model.opaque.test_samples, which the programs evaluate");
    }
    if (model.test_samples() > kMaxOpaqueSamples) {
      Add("model.opaque.test_samples", "is ", model.test_samples(), "; at most ", kMaxOpaqueSamples,
          " are possible");
    }
    if (spec_.averaging().outer().has_slowmo()) {
      Add("averaging.outer.slowmo", "requires the learning rate, which is not known here");
    }
  }

  // Reports what shape inference finds, with the path of the field and the name of the layer; the
  // graph is kept for the rules that depend on shapes.
  void CheckModel() {
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
    graph_ = &valid_graph_.emplace(*std::move(graph));
    CheckTokenClasses();
    CheckLabels();
  }

  // The labels of a language model are tokens, so the number of classes equals the vocabulary.
  void CheckTokenClasses() {
    for (const GraphLayer& layer : graph_->layers()) {
      if (layer.kind != LayerKind::kEmbedding) continue;
      const int64_t vocabulary = layer.settings.embedding().vocabulary();
      if (vocabulary == graph_->classes()) continue;
      Add(absl::StrCat("model.layer[", layer.spec_layer, "].embedding.vocabulary"), "layer '",
          layer.name, "': is ", vocabulary, "; the loss has ", graph_->classes(),
          " classes; they must be equal, since each token is a class");
    }
  }

  // Each token has one label, and an image has one.
  void CheckLabels() {
    const int64_t labels = graph_->takes_tokens() ? graph_->input()[0] : 1;
    if (graph_->labels_per_sample() <= labels) return;
    const GraphLayer& loss = graph_->layers().back();
    Add(absl::StrCat("model.layer[", loss.spec_layer, "].softmax_cross_entropy"), "layer '",
        loss.name, "': takes the scores of ", graph_->labels_per_sample(),
        " tokens, but a sample has ", Counted(labels, "label"));
  }

  void CheckEvaluation() {
    const v1::Evaluation& evaluation = spec_.evaluation();
    if (evaluation.has_every_steps()) {
      AtLeastOne("evaluation.every_steps", evaluation.every_steps());
    }
  }

  // Micro-batches divide a group's batch; zero stands for one.
  void CheckBatch() {
    const uint32_t batch = spec_.batch_per_group();
    AtLeastOne("batch_per_group", batch);
    AtMost("batch_per_group", batch, kMaxBatch);
    if (graph_ && batch <= kMaxBatch) CheckBatchElements();
    if (batch > 0 && spec_.micro_batches() > batch) {
      Add("micro_batches", "is ", spec_.micro_batches(), "; at most the ", Counted(batch, "sample"),
          " of batch_per_group can be computed one by one");
    } else if (graph_ && batch > 0) {
      CheckStatistics(batch / OrOne(spec_.micro_batches()));
    }
  }

  // The statistics of one value per channel are the value and a variance of 0: the output of the
  // norm is its shift, nothing before it learns, and the running variance decays to 0. `samples`:
  // of the smallest micro-batch. plan/norm_statistics.h checks statistics per rank.
  void CheckStatistics(int64_t samples) {
    for (const GraphLayer& layer : graph_->layers()) {
      if (layer.kind != LayerKind::kBatchNorm) continue;
      const int64_t rows = layer.output[0], columns = layer.output[1];
      if (samples * rows * columns != 1) continue;
      Add(absl::StrCat("model.layer[", layer.spec_layer, "].batch_norm"), "layer '", layer.name,
          "': its statistics cover one value per channel: ", rows, " x ", columns,
          " positions of the ", Counted(samples, "sample"),
          " of a micro-batch (batch_per_group is ", spec_.batch_per_group(), ", micro_batches ",
          OrOne(spec_.micro_batches()),
          "), so that its output would be its shift, whatever its input; give at least 2 samples "
          "per micro-batch, or remove the layer");
    }
  }

  // A rank loads its whole part of the batch, independent of micro-batches; ranks that split the
  // model load the same part.
  void CheckBatchElements() {
    const int64_t batch = spec_.batch_per_group();
    const uint64_t same_part =
        uint64_t{RanksAlong(spec_.cluster(), kModelAxis)} * RanksAlong(spec_.cluster(), kStageAxis);
    const int64_t parts =
        std::max<uint64_t>(1, OrOne(spec_.cluster().ranks_per_group()) / same_part);
    const int64_t max_per_part = kMaxBatchElements / graph_->input().elements();
    if ((batch + parts - 1) / parts <= max_per_part) return;
    Add("batch_per_group", "is ", batch, " samples of ", graph_->input().ToString(), " over ",
        Counted(parts, "rank"), "; a rank's part may have ", kMaxBatchElements,
        " elements, so that at most ", max_per_part * parts, " such samples are possible");
  }

  // Zero steps mean that a single group trains without averages.
  void CheckAveraging() {
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
    if (averaging.min_groups() > groups) {
      Add("averaging.min_groups", "is ", averaging.min_groups(), "; there are only ",
          Counted(groups, "group"));
    }
    if (const std::optional<v1::OuterOptimizer> outer = OuterOptimizerOf(averaging)) {
      const absl::string_view kind = outer->has_slowmo() ? "slowmo" : "nesterov";
      const std::string field = absl::StrCat("averaging.outer.", kind);
      Positive(field + ".learning_rate", OuterRate(*outer));
      BelowOne(field + ".momentum", OuterMomentum(*outer));
      AtMost(field + ".every_rounds", outer->nesterov().every_rounds(), kMaxOuterRounds);
    }
    if (averaging.has_outer() &&
        averaging.outer().kind_case() == v1::OuterOptimizer::KIND_NOT_SET) {
      Add("averaging.outer", "has no kind; give nesterov or slowmo");
    }
    CheckCoding("averaging.up", averaging.up());
    CheckCoding("averaging.down", averaging.down());
    if (averaging.has_outer() && averaging.every_steps() == 0) {
      Add("averaging.outer", "is set, but averaging.every_steps is 0, so that there are no rounds");
    }
    CheckFragments();
    const v1::Overlap& overlap = averaging.overlap();
    if (overlap.steps() > 0 && overlap.steps() >= StepsOfRound(averaging)) {
      Add("averaging.overlap.steps", "is ", overlap.steps(),
          "; it must be less than the steps between rounds, of which there are ",
          StepsOfRound(averaging));
    }
    if (!(overlap.blend() >= 0 && overlap.blend() <= 1)) {
      Add("averaging.overlap.blend", "is ", overlap.blend(), "; it must be in [0, 1]");
    }
    if (overlap.has_blend() && overlap.steps() == 0) {
      Add("averaging.overlap.blend", "is set, but averaging.overlap.steps is not");
    }
  }

  void CheckFragments() {
    const v1::Averaging& averaging = spec_.averaging();
    const uint32_t count = averaging.fragments().count();
    const bool divides =
        averaging.every_steps() > 0 && averaging.every_steps() % FragmentsOf(averaging) == 0;
    if (count > kMaxFragments) {
      AtMost("averaging.fragments.count", count, kMaxFragments);
    } else if (count > 1 && !divides) {
      Add("averaging.fragments.count", "is ", count,
          "; averaging.every_steps must be a multiple of it, but is ", averaging.every_steps());
    }
    if (count > 1 && averaging.max_solo_steps() > 0) {
      Add("averaging.fragments.count", "is ", count,
          ", which requires that averaging.max_solo_steps is 0: the round in which a run ends "
          "exchanges the whole model, so it must be known in advance");
    }
    if (count > 1 && averaging.outer().nesterov().every_rounds() > 1) {
      Add("averaging.outer.nesterov.every_rounds", "is ",
          averaging.outer().nesterov().every_rounds(),
          ", which requires that averaging.fragments.count is 1: a round concerns one fragment "
          "only");
    }
    const v1::Staleness& staleness = averaging.staleness();
    if (averaging.has_staleness() && staleness.max_rounds() == 0) {
      Add("averaging.staleness.max_rounds", "is 0; it must be at least 1");
    }
    if (!(staleness.weight() >= 0 && staleness.weight() <= 1)) {
      Add("averaging.staleness.weight", "is ", staleness.weight(), "; it must be in [0, 1]");
    }
    AtMost("averaging.keep_versions.count", averaging.keep_versions().count(), kMaxKeptVersions);
    CheckCopies();
    if (const auto wrong = WrongScreenOf(averaging.screen())) {
      Add(absl::StrCat("averaging.screen.", wrong->field), wrong->reason);
    }
    const bool needs_rounds = averaging.has_screen() || averaging.has_staleness() ||
                              averaging.steps_by_speed() || averaging.has_keep_versions();
    if (needs_rounds && averaging.every_steps() == 0) {
      Add(averaging.has_staleness()    ? "averaging.staleness"
          : averaging.steps_by_speed() ? "averaging.steps_by_speed"
          : averaging.has_screen()     ? "averaging.screen"
                                       : "averaging.keep_versions",
          "is set, but averaging.every_steps is 0, so that there are no rounds");
    }
  }

  void CheckCopies() {
    const v1::Averaging& averaging = spec_.averaging();
    if (averaging.has_copies() && (averaging.copies() < 1 || averaging.copies() > kMaxCopies)) {
      Add("averaging.copies", "is ", averaging.copies(), "; it must be 1 or ", kMaxCopies);
    }
    if (averaging.copies() != kMaxCopies) return;
    if (averaging.every_steps() == 0) {
      Add("averaging.copies", "is 2, but averaging.every_steps is 0, so that there are no rounds");
    }
    if (spec_.cluster().aggregators() == 1) {
      Add("averaging.copies",
          "is 2, but cluster.aggregators is 1: the copy of a shard is on another aggregator");
    }
  }

  void CheckCoding(const std::string& field, const v1::Coding& coding) {
    AtMost(field + ".keep", coding.keep(), kUnitSize);
    if (coding.keep() > 0 && coding.codec() != v1::CODEC_TOPK) {
      Add(field + ".keep", "is ", coding.keep(), "; only CODEC_TOPK leaves values out");
    }
    const float feedback = coding.error_feedback();
    if (!(feedback >= 0 && feedback <= 1)) {
      Add(field + ".error_feedback", "is ", feedback, "; it must be in [0, 1]");
    }
  }

  // Groups have equal models only after an average, so checkpoints of several groups can only be
  // written then.
  void CheckCheckpoint() {
    const v1::Checkpoint& checkpoint = spec_.checkpoint();
    const std::string& directory = checkpoint.directory();
    const std::string& from = checkpoint.from();
    Path("checkpoint.directory", directory);
    Requires("checkpoint.every_steps", checkpoint.every_steps(), "checkpoint.directory", directory);
    Requires("checkpoint.keep", checkpoint.keep(), "checkpoint.directory", directory);
    const uint32_t averaging = spec_.averaging().every_steps();
    const uint32_t remainder = averaging == 0 ? 0 : checkpoint.every_steps() % averaging;
    if (OrOne(spec_.cluster().groups()) > 1 && remainder != 0) {
      const uint32_t below = checkpoint.every_steps() - remainder;
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

  void CheckStop() {
    if (!GivesStop(spec_.stop())) {
      return Add("stop", "has no rule to end the run; give epochs, steps or test_accuracy");
    }
    const float accuracy = spec_.stop().test_accuracy();
    if (accuracy != 0.0F && !(accuracy > 0.0F && accuracy <= 1.0F)) {
      Add("stop.test_accuracy", "is ", accuracy, "; it must be above 0 and at most 1");
    }
  }

  std::optional<Graph> valid_graph_;
};

}  // namespace

std::vector<Problem> FindProblems(const v1::RunSpec& spec) { return Validation(spec).Run(); }

absl::Status ValidateRunSpec(const v1::RunSpec& spec) { return StatusOf(FindProblems(spec)); }

}  // namespace cadre
