// All problems are reported together, in the order of the fields, so that one attempt shows all of
// them. A rule that depends on the shapes of the model is skipped while the model itself has
// problems. Limits reject values that are surely typing errors and would exhaust the memory of a
// worker hours later.
#include "model/validate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/counted_noun.h"
#include "base/utf8.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/graph.h"
#include "model/layer_placement.h"
#include "model/op_indices.h"
#include "model/outer_optimizer.h"
#include "model/shard_names.h"
#include "proto/enum_text.h"
#include "proto/long_text.h"
#include "tensor/mesh.h"

namespace cadre {
namespace {

constexpr size_t kMaxRunName = 63;

std::string MeshToText(const v1::Cluster& cluster) {
  return absl::StrJoin(cluster.mesh(), ", ", [](std::string* out, const v1::MeshAxis& axis) {
    absl::StrAppend(out, absl::CEscape(axis.name()), "=", axis.size());
  });
}

constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarChannels = 3;
constexpr int64_t kCifarClasses = 10;
// Limit of the padding; the usual value for CIFAR is 4.
constexpr uint32_t kMaxCropPadding = 1024;
constexpr uint32_t kMaxOuterRounds = 1 << 20;
constexpr uint32_t kMaxFragments = 64;
constexpr size_t kMaxParameterName = 256;
constexpr size_t kMaxFrozenDigest = 64;
constexpr int64_t kMaxOpaqueElements = int64_t{1} << 40;
constexpr uint64_t kMaxOpaqueSamples = uint64_t{1} << 40;
// Every aggregator has 24 bytes for each unit of the model.
constexpr int64_t kMaxUnitElements = int64_t{1} << 36;

// The value of a count whose default is 1; 0 means not set.
uint32_t OrOne(uint32_t value) { return value == 0 ? 1 : value; }

class Validation : private ProblemCollector {
 public:
  // The spec is borrowed.
  explicit Validation(const v1::RunSpec& spec) : spec_(spec) {}

  std::vector<Problem> Run() {
    CheckSize();
    // The other rules take time and memory in proportion to what they check.
    if (!problems_.empty()) return std::move(problems_);
    CheckName();
    if (opaque()) {
      CheckOpaqueModel();
    } else {
      CheckModel();
      CheckData();
    }
    CheckBatch();
    if (!opaque()) {
      CheckOptimizer();
      CheckSchedule();
    }
    CheckAveraging();
    CheckCluster();
    CheckStop();
    CheckCheckpoint();
    CheckEvaluation();
    return std::move(problems_);
  }

 private:
  // ---- Rules for values. NaN and infinities violate each of those for floats.

  void AtMost(absl::string_view field, uint32_t value, uint32_t max) {
    if (value > max) Add(field, "is ", value, "; at most ", max, " is possible");
  }

  void AtLeastOne(absl::string_view field, uint32_t value) {
    if (value == 0) Add(field, "is 0; it must be at least 1");
  }

  void Finite(absl::string_view field, float value) {
    if (!std::isfinite(value)) Add(field, "is ", value, "; it must be a finite number");
  }

  void NotNegative(absl::string_view field, float value) {
    if (std::isfinite(value) && value >= 0.0F) return;
    Add(field, "is ", value, "; it must be a number of at least 0");
  }

  void Positive(absl::string_view field, float value) {
    if (std::isfinite(value) && value > 0.0F) return;
    Add(field, "is ", value, "; it must be a number above 0");
  }

  void Fraction(absl::string_view field, float value) {
    if (value >= 0.0F && value <= 1.0F) return;
    Add(field, "is ", value, "; it must be from 0 to 1");
  }

  void BelowOne(absl::string_view field, float value) {
    if (value >= 0.0F && value < 1.0F) return;
    Add(field, "is ", value, "; it must be at least 0 and below 1");
  }

  // Requires UTF-8 without zero bytes.
  void Path(absl::string_view field, const std::string& path) {
    if (!IsUtf8(path)) {
      Add(field, Quoted(path), " is not UTF-8; give the path in that encoding");
    } else if (path.find('\0') != std::string::npos) {
      Add(field, Quoted(path), " contains a zero byte");
    }
  }

  void NeededPath(absl::string_view field, const std::string& path) {
    if (path.empty()) return Add(field, "is missing; give the path");
    Path(field, path);
  }

  // Adds a problem if `value` is above 0 but the text of another field, which it requires, is
  // empty.
  void Requires(absl::string_view field, uint64_t value, absl::string_view other,
                const std::string& other_value) {
    if (value > 0 && other_value.empty()) {
      Add(field, "is ", value, ", but ", other, " is not set");
    }
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

  void CheckOpaqueModel() {
    const v1::OpaqueModel& model = spec_.model().opaque();
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
    graph_ = *std::move(graph);
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
    const uint64_t same_part = uint64_t{RanksAlong(kModelAxis)} * RanksAlong(kStageAxis);
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
    const bool needs_rounds = averaging.has_staleness() || averaging.steps_by_speed();
    if (needs_rounds && averaging.every_steps() == 0) {
      Add(averaging.has_staleness() ? "averaging.staleness" : "averaging.steps_by_speed",
          "is set, but averaging.every_steps is 0, so that there are no rounds");
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

  bool GivesStop() const {
    const v1::Stop& stop = spec_.stop();
    return stop.epochs() > 0 || stop.steps() > 0 || stop.test_accuracy() != 0.0F;
  }

  void CheckStop() {
    if (!GivesStop()) {
      return Add("stop", "has no rule to end the run; give epochs, steps or test_accuracy");
    }
    const float accuracy = spec_.stop().test_accuracy();
    if (accuracy != 0.0F && !(accuracy > 0.0F && accuracy <= 1.0F)) {
      Add("stop.test_accuracy", "is ", accuracy, "; it must be above 0 and at most 1");
    }
  }

  // ---- Groups, ranks, mesh and devices
  //
  // A spec describes the mesh either by counts (model_ranks and space_ranks, with `data` as the
  // rest) or by a list of axes. Both may be given if they agree. The planner reads the same fields
  // again for a group that has fewer ranks than the spec requests (plan/search/plan_problem.h).

  // Ranks along `model` or `space`, from the mesh or from the counts; 1 by default.
  uint32_t RanksAlong(absl::string_view name) const {
    const v1::Cluster& cluster = spec_.cluster();
    if (cluster.mesh().empty()) {
      if (name == kStageAxis) return 1;
      return OrOne(name == kModelAxis ? cluster.model_ranks() : cluster.space_ranks());
    }
    for (const v1::MeshAxis& axis : cluster.mesh()) {
      if (axis.name() == name) return OrOne(axis.size());
    }
    return 1;
  }

  // Whether the mesh is pinned, has several ranks and consists of `data` alone, so that no layer
  // can be split by another index than samples.
  bool IsDataAlone() const {
    return !spec_.cluster().mesh().empty() && RanksAlong(kModelAxis) == 1 &&
           RanksAlong(kSpaceAxis) == 1 && OrOne(spec_.cluster().ranks_per_group()) > 1;
  }

  void CheckCluster() {
    const v1::Cluster& cluster = spec_.cluster();
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    AtMost("cluster.groups", cluster.groups(), kMaxGroups);
    AtMost("cluster.ranks_per_group", cluster.ranks_per_group(), kMaxRanksPerGroup);
    if (cluster.min_ranks_per_group() > ranks) {
      Add("cluster.min_ranks_per_group", "is ", cluster.min_ranks_per_group(),
          "; a group has only ", Counted(ranks, "rank"));
    }
    if (cluster.mesh().empty()) {
      CheckMesh();
    } else {
      CheckPinnedMesh();
    }
    AtMost("cluster.aggregators", cluster.aggregators(), kMaxAggregators);
    if (cluster.has_max_pause_ms() && cluster.max_pause_ms() == 0) {
      Add("cluster.max_pause_ms", "is 0; it must be positive");
    }
    // Numbers without names can only come from other programs, not from run files.
    if (!v1::Cluster::CollectivePolicy_IsValid(cluster.collectives())) {
      Add("cluster.collectives", "is ", cluster.collectives(),
          "; give AUTO, RING, BUTTERFLY, HALVING_DOUBLING, PAPER or NATIVE");
    }
    CheckDevice();
    if (!v1::Cluster::Overlap_IsValid(cluster.overlap())) {
      Add("cluster.overlap", "is ", cluster.overlap(), "; give ON or OFF");
    }
    if (!v1::Cluster::Pipeline_IsValid(cluster.pipeline())) {
      Add("cluster.pipeline", "is ", cluster.pipeline(),
          "; give ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD_FIRST or NO_PIPELINE");
    }
    CheckLayerPins();
  }

  // NCCL and TF32 exist on CUDA devices only.
  void CheckDevice() {
    const v1::Cluster& cluster = spec_.cluster();
    if (!v1::Cluster::Device_IsValid(cluster.device())) {
      Add("cluster.device", "is ", cluster.device(), "; give CPU or CUDA");
    }
    const bool cuda = cluster.device() == v1::Cluster::CUDA;
    if (cluster.collectives() == v1::Cluster::NATIVE && !cuda) {
      Add("cluster.collectives",
          "is NATIVE, which is NCCL's; set cluster.device to CUDA, or give AUTO");
    }
    if (!v1::RunSpec::Precision_IsValid(spec_.precision())) {
      Add("precision", "is ", spec_.precision(), "; give FP32, TF32 or BF16");
    } else if (!cuda && spec_.precision() == v1::RunSpec::TF32) {
      Add("precision",
          "is TF32, which only CUDA devices have; set cluster.device to CUDA, or give FP32 or "
          "BF16");
    }
  }

  // Checks the counts of the mesh. `data` has the remaining ranks, so the product of the counts
  // must divide the ranks.
  void CheckMesh() {
    const v1::Cluster& cluster = spec_.cluster();
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    const uint32_t space = OrOne(cluster.space_ranks());
    const uint32_t model = OrOne(cluster.model_ranks());
    const bool model_fits = ranks % model == 0;
    if (!model_fits) {
      Add("cluster.model_ranks", "is ", model, ", which does not divide the ",
          Counted(ranks, "rank"), " of a group");
    }
    if (space == 1) return;
    if (ranks % space != 0) {
      Add("cluster.space_ranks", "is ", space, ", which does not divide the ",
          Counted(ranks, "rank"), " of a group");
    } else if (model_fits && ranks % (uint64_t{space} * model) != 0) {
      Add("cluster.space_ranks", "is ", space, " and model_ranks is ", model, "; their product, ",
          uint64_t{space} * model, ", does not divide the ", ranks, " ranks of a group");
    }
    CheckRows("cluster.space_ranks", space);
  }

  // The space axis splits the rows of images; every rank needs at least one row.
  void CheckRows(const std::string& field, uint32_t space) {
    if (!graph_ || space == 1) return;
    if (graph_->takes_tokens()) {
      Add(field, "is ", space,
          ", but only images have rows to split; the model takes tokens, leave it out");
    } else if (graph_->input()[0] < space) {
      Add(field, "is ", space, ", but the model's input has only ", graph_->input()[0],
          " rows to split");
    }
  }

  // Stops at an invalid size: the product of the axes is then unknown.
  void CheckPinnedMesh() {
    const v1::Cluster& cluster = spec_.cluster();
    std::set<std::string> names;
    uint64_t product = 1;
    for (int i = 0; i < cluster.mesh_size(); ++i) {
      const v1::MeshAxis& axis = cluster.mesh(i);
      const std::string field = absl::StrCat("cluster.mesh[", i, "]");
      if (axis.name() != kDataAxis && axis.name() != kSpaceAxis && axis.name() != kModelAxis &&
          axis.name() != kStageAxis) {
        Add(field + ".name", "is ", Quoted(axis.name()), "; give data, space, model or stage");
      } else if (!names.insert(axis.name()).second) {
        Add(field + ".name", "is '", axis.name(), "' once more; each axis is given once");
      }
      AtLeastOne(field + ".size", axis.size());
      AtMost(field + ".size", axis.size(), kMaxRanksPerGroup);
      if (axis.size() == 0 || axis.size() > kMaxRanksPerGroup) return;
      if (axis.name() == kSpaceAxis) CheckRows(field + ".size", axis.size());
      product = std::min<uint64_t>(product * axis.size(), uint64_t{1} << 32);
    }
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    if (product != ranks) {
      Add("cluster.mesh", "is ", MeshToText(cluster), ", which makes ", product,
          " ranks; ranks_per_group is ", ranks);
    }
    CheckMeshAgrees("cluster.model_ranks", cluster.model_ranks(), kModelAxis);
    CheckMeshAgrees("cluster.space_ranks", cluster.space_ranks(), kSpaceAxis);
  }

  // A count of zero is unset; otherwise the count and the list of axes must describe the same mesh.
  void CheckMeshAgrees(absl::string_view field, uint32_t ranks, absl::string_view axis) {
    if (ranks == 0 || ranks == RanksAlong(axis)) return;
    Add(field, "is ", ranks, ", but cluster.mesh has ", RanksAlong(axis), " along ", axis,
        "; give one of them");
  }

  // Checked here because the planner would report these problems only after the run was accepted.
  void CheckLayerPins() {
    const auto& pins = spec_.cluster().layer();
    // Without a graph another problem has been reported.
    const int max_pins = graph_ ? graph_->size() : kMaxLayers;
    if (pins.size() > max_pins) {
      Add("cluster.layer", "pins ", pins.size(), " layers; the model has ",
          graph_ ? "" : "at most ", max_pins);
      return;
    }
    std::map<absl::string_view, const GraphLayer*> layers;
    if (graph_) {
      for (const GraphLayer& layer : graph_->layers()) layers[layer.name] = &layer;
    }
    std::set<absl::string_view> pinned;
    for (int i = 0; i < pins.size(); ++i) {
      const v1::LayerPin& pin = pins[i];
      const std::string field = absl::StrCat("cluster.layer[", i, "]");
      if (!pinned.insert(pin.layer()).second) {
        Add(field + ".layer", "is ", Quoted(pin.layer()), " once more; pin a layer once");
        continue;
      }
      const bool splits = pin.parallelism() != v1::LayerPin::PARALLELISM_UNSPECIFIED;
      if (!splits && !pin.at().empty()) continue;
      if (IndexOfParallelism(pin.parallelism()).empty()) {
        Add(field + ".parallelism", "is ", pin.parallelism(),
            "; give DATA, MODEL, MODEL_IN or DOMAIN, or place the layer with 'at'");
        continue;
      }
      if (!graph_) continue;
      const auto layer = layers.find(pin.layer());
      if (layer == layers.end()) {
        Add(field + ".layer", "is ", Quoted(pin.layer()), ", which is not a layer of the model");
      } else {
        CheckLayerPin(field + ".parallelism", pin, *layer->second);
      }
    }
    CheckPlacement();
  }

  void CheckPlacement() {
    if (!graph_) return;
    LayerCoordinates placed;
    if (const auto error = PlaceLayers(spec_.cluster(), *graph_, &placed)) {
      Add(error->pin == PlacementError::kMesh ? "cluster.mesh"
                                              : absl::StrCat("cluster.layer[", error->pin, "].at"),
          error->text);
    }
  }

  // Checks that the layer has the index of the pin.
  void CheckLayerPin(const std::string& field, const v1::LayerPin& pin, const GraphLayer& layer) {
    const absl::string_view index = IndexOfParallelism(pin.parallelism());
    if (!HasIndex(layer, index)) {
      absl::string_view reason;
      if (layer.shares_weight) {
        reason = ", since it shares its weight with another layer";
      } else if (layer.sampled_classes > 0 && index == "out") {
        reason = ", since the loss samples its outputs";
      }
      Add(field, "is '", EnumText(pin.parallelism()), "', but layer '", layer.name,
          "' can only be split along ", ParallelismsOf(&layer), reason);
    } else if (index != "samples" && IsDataAlone()) {
      Add(field, "is '", EnumText(pin.parallelism()),
          "', but cluster.mesh has no axis besides data to give to it");
    }
  }

  // ---- Data sources. The files themselves are on other hosts (model/formats/data_check.h reads
  // them).

  void CheckData() {
    const v1::Data& data = spec_.data();
    switch (data.source_case()) {
      case v1::Data::kIdx:
        return CheckIdx(data.idx());
      case v1::Data::kSynthetic:
        return CheckSynthetic(data.synthetic());
      case v1::Data::kCifar10:
        return CheckCifar10(data.cifar10());
      case v1::Data::kImageFolder:
        return CheckJpegs("data.image_folder", data.image_folder().train(),
                          data.image_folder().test(), data.image_folder().augmentation());
      case v1::Data::kTarShards:
        CheckShardNames("data.tar_shards.train", data.tar_shards().train());
        CheckShardNames("data.tar_shards.test", data.tar_shards().test());
        return CheckJpegs("data.tar_shards", data.tar_shards().train(), data.tar_shards().test(),
                          data.tar_shards().augmentation());
      case v1::Data::kTokenFiles:
        return CheckTokenFiles(data.token_files());
      case v1::Data::SOURCE_NOT_SET:
        Add("data",
            "has no source; give idx, cifar10, image_folder, tar_shards, token_files or synthetic");
    }
  }

  // Adds a problem and returns false if the model requires tokens.
  bool NeedsImages(const std::string& field) {
    if (!graph_ || !graph_->takes_tokens()) return true;
    Add(field, "contains images, but the model requires tokens; give token_files or synthetic");
    return false;
  }

  void CheckIdx(const v1::IdxFiles& idx) {
    NeedsImages("data.idx");
    for (const auto& [field, path] : {std::pair{"train_images", &idx.train_images()},
                                      {"train_labels", &idx.train_labels()},
                                      {"test_images", &idx.test_images()},
                                      {"test_labels", &idx.test_labels()}}) {
      NeededPath(absl::StrCat("data.idx.", field), *path);
    }
    Finite("data.idx.mean", idx.mean());
    NotNegative("data.idx.stddev", idx.stddev());
  }

  void CheckSynthetic(const v1::SyntheticData& synthetic) {
    AtLeastOne("data.synthetic.train_samples", synthetic.train_samples());
    AtLeastOne("data.synthetic.test_samples", synthetic.test_samples());
    AtMost("data.synthetic.train_samples", synthetic.train_samples(), kMaxSyntheticSamples);
    AtMost("data.synthetic.test_samples", synthetic.test_samples(), kMaxSyntheticSamples);
    if (synthetic.classes() == 0) {
      Add("data.synthetic.classes", "is 0; it must be at least 1");
    } else if (graph_ && synthetic.classes() != graph_->classes()) {
      Add("data.synthetic.classes", "is ", synthetic.classes(), "; the model has ",
          graph_->classes(), " classes");
    } else if (graph_ && !graph_->takes_tokens()) {
      CheckCenters(synthetic.classes());
    }
    if (graph_ && graph_->takes_tokens()) {
      Fraction("data.synthetic.noise", synthetic.noise());
    } else {
      NotNegative("data.synthetic.noise", synthetic.noise());
    }
  }

  // Every worker stores all centers.
  void CheckCenters(int64_t classes) {
    const int64_t max_classes = kMaxCenterElements / graph_->input().elements();
    if (classes <= max_classes) return;
    Add("data.synthetic.classes", "is ", classes, ", each with a center of ",
        graph_->input().ToString(), "; all of them may have ", kMaxCenterElements,
        " elements together, so that at most ", max_classes,
        " classes of such images are possible");
  }

  // The format determines shape and classes, so the model must have the same shape and at least as
  // many classes.
  void CheckCifar10(const v1::Cifar10& cifar10) {
    NeededPath("data.cifar10.directory", cifar10.directory());
    if (NeedsImages("data.cifar10") && graph_) {
      const Shape cifar{kCifarSide, kCifarSide, kCifarChannels};
      if (graph_->input() != cifar) {
        Add("data.cifar10", "holds images of ", cifar.ToString(),
            " (height, width, channels), but the model takes ", graph_->input().ToString());
      }
      if (graph_->classes() < kCifarClasses) {
        Add("data.cifar10", "holds ", kCifarClasses, " classes, but the model has only ",
            graph_->classes());
      }
    }
    CheckAugmentation("data.cifar10.augmentation", cifar10.augmentation());
  }

  // JPEG images are decoded to 3 channels, or to 1 (grey), as the model requires.
  void CheckJpegs(const std::string& field, const std::string& train, const std::string& test,
                  const v1::Augmentation& augmentation) {
    if (NeedsImages(field) && graph_) {
      if (const int64_t channels = graph_->input()[2]; channels != 1 && channels != 3) {
        Add(field, "holds JPEG images of 3 channels (or 1, grey), but the model takes ", channels);
      }
    }
    NeededPath(field + ".train", train);
    NeededPath(field + ".test", test);
    CheckAugmentation(field + ".augmentation", augmentation);
  }

  void CheckShardNames(const std::string& field, const std::string& pattern) {
    const auto names = ShardNames::Parse(pattern);
    if (!names.ok()) Add(field, std::string(names.status().message()));
  }

  // Tokens are unsigned integers of 1, 2 or 4 bytes; 0 stands for the default of 2.
  void CheckTokenFiles(const v1::TokenFiles& files) {
    if (graph_ && !graph_->takes_tokens()) {
      Add("data.token_files",
          "contains tokens, but the model requires images; give the model `tokens`");
    }
    NeededPath("data.token_files.train", files.train());
    NeededPath("data.token_files.test", files.test());
    const uint32_t bytes = files.bytes_per_token();
    if (bytes == 3 || bytes > 4) {
      Add("data.token_files.bytes_per_token", "is ", bytes, "; it must be 1, 2 or 4");
    }
  }

  void CheckAugmentation(const std::string& field, const v1::Augmentation& augmentation) {
    AtMost(field + ".crop_padding", augmentation.crop_padding(), kMaxCropPadding);
    if (augmentation.random_resized_crop() && augmentation.crop_padding() > 0) {
      Add(field + ".crop_padding", "cannot be combined with random_resized_crop");
    }
    for (const bool is_mean : {true, false}) {
      const auto& values = is_mean ? augmentation.mean() : augmentation.stddev();
      const std::string list = field + (is_mean ? ".mean" : ".stddev");
      if (!values.empty() && graph_ && !graph_->takes_tokens() &&
          values.size() != graph_->input()[2]) {
        Add(list, "has ", values.size(), " numbers; the model's input has ", graph_->input()[2],
            " channels, give one for each, or none");
      }
      for (int i = 0; i < values.size(); ++i) {
        const std::string element = absl::StrCat(list, "[", i, "]");
        is_mean ? Finite(element, values[i]) : Positive(element, values[i]);
      }
    }
  }

  // ---- Optimizer and learning rate schedule
  //
  // Cosine and polynomial decay are functions of the run's length, so they require a stop rule that
  // determines it (epochs or steps); a target accuracy alone ends the run at an unknown step.

  void CheckOptimizer() {
    const v1::Optimizer& optimizer = spec_.optimizer();
    switch (optimizer.kind_case()) {
      case v1::Optimizer::kSgd:
        BelowOne("optimizer.sgd.momentum", optimizer.sgd().momentum());
        NotNegative("optimizer.sgd.weight_decay", optimizer.sgd().weight_decay());
        if (optimizer.sgd().nesterov() && optimizer.sgd().momentum() == 0.0F) {
          Add("optimizer.sgd.nesterov",
              "has no effect without momentum; give momentum, or leave it out");
        }
        break;
      case v1::Optimizer::kAdamw:
        BelowOne("optimizer.adamw.beta1", optimizer.adamw().beta1());
        BelowOne("optimizer.adamw.beta2", optimizer.adamw().beta2());
        NotNegative("optimizer.adamw.epsilon", optimizer.adamw().epsilon());
        NotNegative("optimizer.adamw.weight_decay", optimizer.adamw().weight_decay());
        break;
      case v1::Optimizer::kLars:
        BelowOne("optimizer.lars.momentum", optimizer.lars().momentum());
        NotNegative("optimizer.lars.weight_decay", optimizer.lars().weight_decay());
        NotNegative("optimizer.lars.trust", optimizer.lars().trust());
        break;
      case v1::Optimizer::KIND_NOT_SET:
        Add("optimizer", "has no kind; give sgd, adamw or lars");
    }
    NotNegative("optimizer.clip_norm", optimizer.clip_norm());
  }

  void CheckSchedule() {
    Positive("schedule.base_rate", spec_.schedule().base_rate());
    CheckWarmup();
    CheckDecay();
  }

  // If the number of steps is limited, the warm-up must fit.
  void CheckWarmup() {
    const uint64_t warmup = spec_.schedule().warmup_steps();
    uint64_t steps = spec_.stop().steps();
    std::string why = "stop.steps";
    const uint64_t train = spec_.data().synthetic().train_samples();
    if (train > 0 && spec_.stop().epochs() > 0) {
      const uint64_t batch =
          uint64_t{OrOne(spec_.batch_per_group())} * OrOne(spec_.cluster().groups());
      // An epoch may end in the middle of a batch.
      const uint64_t max_steps = train * spec_.stop().epochs() / batch + spec_.stop().epochs();
      if (steps == 0 || max_steps < steps) {
        steps = max_steps;
        why = "stop.epochs";
      }
    }
    if (steps == 0 || warmup <= steps) return;
    Add("schedule.warmup_steps", "is ", warmup, ", but the run ends after at most ", steps,
        " steps by ", why, "; warm up within them");
  }

  // Checks the decay's own fields first, then that the run's length is known.
  void CheckDecay() {
    const v1::Schedule& schedule = spec_.schedule();
    std::string curve;
    switch (schedule.decay_case()) {
      case v1::Schedule::kStep:
        AtLeastOne("schedule.step.every_steps", schedule.step().every_steps());
        return Positive("schedule.step.factor", schedule.step().factor());
      case v1::Schedule::kCosine:
        curve = "schedule.cosine";
        Fraction("schedule.cosine.final_fraction", schedule.cosine().final_fraction());
        break;
      case v1::Schedule::kPolynomial:
        curve = "schedule.polynomial";
        NotNegative("schedule.polynomial.power", schedule.polynomial().power());
        Fraction("schedule.polynomial.final_fraction", schedule.polynomial().final_fraction());
        break;
      case v1::Schedule::DECAY_NOT_SET:
        return;
    }
    // CheckStop reports a run without rules.
    if (spec_.stop().epochs() == 0 && spec_.stop().steps() == 0 && GivesStop()) {
      Add(curve, "needs a run of known length; give stop.epochs or stop.steps too");
    }
  }

  const v1::RunSpec& spec_;
  // Set if the model has no problems.
  std::optional<Graph> graph_;
};

}  // namespace

std::vector<Problem> FindProblems(const v1::RunSpec& spec) { return Validation(spec).Run(); }

absl::Status ValidateRunSpec(const v1::RunSpec& spec) { return StatusOf(FindProblems(spec)); }

}  // namespace cadre
