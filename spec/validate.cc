#include "spec/validate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spec/graph.h"

namespace cadre {
namespace {

constexpr size_t kMostNameCharacters = 63;

// Whole numbers print as such: a rate of 2 is "2" and not "2.000000".
std::string Number(float value) { return absl::StrCat(value); }

// Fields whose 0 stands for 1.
uint32_t OrOne(uint32_t value) { return std::max(1U, value); }

class Validation {
 public:
  explicit Validation(const v1::RunSpec& spec) : spec_(spec) {}

  std::vector<Problem> Run() {
    CheckName();
    CheckModel();
    CheckData();
    CheckBatch();
    CheckOptimizer();
    CheckSchedule();
    CheckAveraging();
    CheckCluster();
    CheckStop();
    return std::move(problems_);
  }

 private:
  template <typename... Parts>
  void Add(absl::string_view field, const Parts&... message) {
    problems_.push_back({std::string(field), absl::StrCat(message...)});
  }

  void AtMost(absl::string_view field, uint32_t value, uint32_t most) {
    if (value > most) Add(field, "is ", value, "; at most ", most, " is possible");
  }

  // Finite and at least 0.
  void NotNegative(absl::string_view field, float value) {
    if (std::isfinite(value) && value >= 0.0F) return;
    Add(field, "is ", Number(value), "; it must be a number of at least 0");
  }

  // Finite and above 0.
  void Positive(absl::string_view field, float value) {
    if (std::isfinite(value) && value > 0.0F) return;
    Add(field, "is ", Number(value), "; it must be a number above 0");
  }

  void AtLeastOne(absl::string_view field, uint32_t value) {
    if (value == 0) Add(field, "is 0; it must be at least 1");
  }

  void CheckName() {
    const std::string& name = spec_.name();
    if (name.empty()) {
      Add("name", "is missing; give the run a name of [a-z0-9-]");
    } else if (name.size() > kMostNameCharacters) {
      Add("name", "has ", name.size(), " characters; at most ", kMostNameCharacters,
          " are allowed");
    } else if (!std::all_of(name.begin(), name.end(), [](unsigned char c) {
                 return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
               })) {
      Add("name", "'", name, "' has a character other than [a-z0-9-]");
    }
  }

  void CheckModel() {
    if (!spec_.has_model()) {
      Add("model", "is missing; give the input and the layers");
      return;
    }
    std::vector<LayerProblem> found;
    const std::vector<GraphLayer> layers = InferLayers(spec_.model(), &found);
    for (const LayerProblem& problem : found) {
      std::vector<std::string> path = {"model"};
      if (problem.layer >= 0) path.push_back(absl::StrCat("layer[", problem.layer, "]"));
      if (!problem.field.empty()) path.push_back(problem.field);
      Add(absl::StrJoin(path, "."), problem.message);
    }
    if (found.empty()) classes_ = layers.back().in_features();
  }

  void CheckData() {
    switch (spec_.data().source_case()) {
      case v1::Data::kIdx:
        return CheckIdx(spec_.data().idx());
      case v1::Data::kSynthetic:
        return CheckSynthetic(spec_.data().synthetic());
      case v1::Data::SOURCE_NOT_SET:
        Add("data", "names no source; give idx or synthetic");
    }
  }

  void CheckIdx(const v1::IdxFiles& idx) {
    for (const auto& [field, path] : {std::pair{"train_images", &idx.train_images()},
                                      {"train_labels", &idx.train_labels()},
                                      {"test_images", &idx.test_images()},
                                      {"test_labels", &idx.test_labels()}}) {
      if (path->empty()) Add(absl::StrCat("data.idx.", field), "is missing; give the file's path");
    }
    if (!std::isfinite(idx.mean())) {
      Add("data.idx.mean", "is ", Number(idx.mean()), "; it must be a finite number");
    }
    NotNegative("data.idx.stddev", idx.stddev());
  }

  void CheckSynthetic(const v1::SyntheticData& synthetic) {
    AtLeastOne("data.synthetic.train_samples", synthetic.train_samples());
    AtLeastOne("data.synthetic.test_samples", synthetic.test_samples());
    if (synthetic.classes() == 0) {
      Add("data.synthetic.classes", "is 0; it must be at least 1");
    } else if (classes_ > 0 && synthetic.classes() != classes_) {
      Add("data.synthetic.classes", "is ", synthetic.classes(), "; the model tells ", classes_,
          " classes apart");
    }
    NotNegative("data.synthetic.noise", synthetic.noise());
  }

  void CheckBatch() {
    const uint32_t batch = spec_.batch_per_group();
    AtLeastOne("batch_per_group", batch);
    AtMost("batch_per_group", batch, kMostBatch);
    const uint32_t ranks = OrOne(spec_.cluster().ranks_per_group());
    const uint32_t over = batch % ranks;
    if (batch == 0 || over == 0) return;
    const uint32_t below = batch - over;
    Add("batch_per_group", "is ", batch, ", which ", ranks,
        " ranks cannot share evenly; the nearest that fit are ",
        below == 0 ? "" : absl::StrCat(below, " and "), uint64_t{below} + ranks);
  }

  void CheckOptimizer() {
    if (!spec_.optimizer().has_sgd()) {
      Add("optimizer", "names no kind; give sgd");
      return;
    }
    const v1::Sgd& sgd = spec_.optimizer().sgd();
    if (!(sgd.momentum() >= 0.0F && sgd.momentum() < 1.0F)) {
      Add("optimizer.sgd.momentum", "is ", Number(sgd.momentum()),
          "; it must be at least 0 and below 1");
    }
    NotNegative("optimizer.sgd.weight_decay", sgd.weight_decay());
  }

  void CheckSchedule() {
    const v1::Schedule& schedule = spec_.schedule();
    Positive("schedule.base_rate", schedule.base_rate());
    if (schedule.has_step()) {
      AtLeastOne("schedule.step.every_steps", schedule.step().every_steps());
      Positive("schedule.step.factor", schedule.step().factor());
    }
    if (!schedule.has_cosine()) return;
    const float fraction = schedule.cosine().final_fraction();
    if (!(fraction >= 0.0F && fraction <= 1.0F)) {
      Add("schedule.cosine.final_fraction", "is ", Number(fraction), "; it must be from 0 to 1");
    }
    if (spec_.stop().epochs() == 0 && spec_.stop().steps() == 0 && GivesStop()) {
      Add("schedule.cosine", "needs a run of known length; give stop.epochs or stop.steps too");
    }
  }

  void CheckAveraging() {
    const v1::Averaging& averaging = spec_.averaging();
    const uint32_t groups = OrOne(spec_.cluster().groups());
    if (averaging.every_steps() == 0 && groups > 1) {
      Add("averaging.every_steps", "is 0, which is legal only with one group; there are ", groups,
          " groups, give the number of steps between averages");
    }
    if (averaging.quorum() > groups) {
      Add("averaging.quorum", "is ", averaging.quorum(), "; there are only ", groups, " group",
          groups == 1 ? "" : "s");
    }
  }

  void CheckCluster() {
    const v1::Cluster& cluster = spec_.cluster();
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    AtMost("cluster.groups", cluster.groups(), kMostGroups);
    AtMost("cluster.ranks_per_group", cluster.ranks_per_group(), kMostRanksPerGroup);
    if (cluster.min_ranks_per_group() > ranks) {
      Add("cluster.min_ranks_per_group", "is ", cluster.min_ranks_per_group(),
          "; a group has only ", ranks, " rank", ranks == 1 ? "" : "s");
    }
    if (cluster.model_ranks() > 0 && ranks % cluster.model_ranks() != 0) {
      Add("cluster.model_ranks", "is ", cluster.model_ranks(), ", which does not divide the ",
          ranks, " rank", ranks == 1 ? "" : "s", " of a group");
    }
    AtMost("cluster.aggregators", cluster.aggregators(), kMostAggregators);
  }

  bool GivesStop() const {
    const v1::Stop& stop = spec_.stop();
    return stop.epochs() > 0 || stop.steps() > 0 || stop.test_accuracy() != 0.0F;
  }

  void CheckStop() {
    if (!GivesStop()) {
      Add("stop", "gives no rule, the run would never end; give epochs, steps or test_accuracy");
      return;
    }
    const float accuracy = spec_.stop().test_accuracy();
    if (accuracy != 0.0F && !(accuracy > 0.0F && accuracy <= 1.0F)) {
      Add("stop.test_accuracy", "is ", Number(accuracy), "; it must be above 0 and at most 1");
    }
  }

  const v1::RunSpec& spec_;
  std::vector<Problem> problems_;
  // Of a model without problems; 0: not known.
  int64_t classes_ = 0;
};

}  // namespace

std::vector<Problem> FindProblems(const v1::RunSpec& spec) { return Validation(spec).Run(); }

absl::Status ValidateRunSpec(const v1::RunSpec& spec) {
  const std::vector<Problem> problems = FindProblems(spec);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(
      problems, "\n",
      [](std::string* out, const Problem& problem) { absl::StrAppend(out, problem.ToString()); }));
}

}  // namespace cadre
