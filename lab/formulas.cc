// One table describes all formulas: name, source, parameters with their kinds and defaults, and the
// function that evaluates them. Parsing, range checks and their list derive from it.
//
// The formulas' functions require arguments for which integers do not overflow and loops end.
// For single parameters, the range of their kind ensures this. Functions that multiply or add
// parameters first compare the result with kMaxProduct. Results that are not finite are errors.
#include "lab/formulas.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "lab/grid_cost.h"
#include "lab/hierarchical_averaging.h"
#include "lab/time_to_accuracy.h"
#include "plan/cost/collective_cost.h"
#include "plan/cost/discrepancy.h"
#include "plan/cost/group_hybrid.h"
#include "plan/cost/overlap.h"

namespace cadre {
namespace {

using absl::InvalidArgumentError;

// Doubles represent integers exactly up to here.
constexpr double kMaxCount = 9e15;
// Maximum number of ranks, groups and devices.
constexpr double kMaxRanks = 1 << 20;
// Maximum of products and sums of counts, so that they fit into 64 bits.
constexpr double kMaxProduct = 1e18;
// Maximum length of a list.
constexpr int kMaxNumbers = 100'000;

// The kinds of parameters; NumberOf checks their ranges. The last two are lists.
enum class Kind { kCount, kRanks, kNumber, kPositive, kNumbers, kCounts };

bool IsList(Kind kind) { return kind == Kind::kNumbers || kind == Kind::kCounts; }

struct FormulaParameter {
  const char* name;
  Kind kind = Kind::kNumber;
  // The default value; a parameter without one is required.
  std::optional<double> fallback = std::nullopt;
};

// The value of every parameter of a formula.
class Numbers {
 public:
  double operator[](const char* name) const { return values_.at(name).front(); }
  int64_t Count(const char* name, size_t i = 0) const { return values_.at(name)[i]; }
  const std::vector<double>& List(const char* name) const { return values_.at(name); }
  bool Has(const std::string& name) const { return values_.contains(name); }
  void Set(const std::string& name, std::vector<double> values) {
    values_[name] = std::move(values);
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

struct Formula {
  const char* name;
  const char* source;
  std::vector<FormulaParameter> parameters;
  std::function<absl::StatusOr<FormulaResults>(const Numbers&)> evaluate;
};

LinkProfile LinkOf(const Numbers& numbers) {
  return {.alpha = numbers["alpha"], .beta = 1 / numbers["bandwidth"], .gamma = numbers["gamma"]};
}

const std::vector<FormulaParameter> kCollective = {{"ranks", Kind::kRanks},
                                                   {"bytes", Kind::kCount},
                                                   {"alpha"},
                                                   {"bandwidth", Kind::kPositive},
                                                   {"gamma", Kind::kNumber, 0}};

Formula AllReduceBy(const char* name, Algorithm algorithm) {
  return {name, "Thakur, Rabenseifner, Gropp 2005", kCollective,
          [algorithm](const Numbers& numbers) -> absl::StatusOr<FormulaResults> {
            const int ranks = static_cast<int>(numbers.Count("ranks"));
            const int64_t bytes = numbers.Count("bytes");
            const CollectiveWork work = WorkOf(Collective::kAllReduce, algorithm, ranks, bytes);
            return FormulaResults{{"messages", work.steps},
                                  {"bytes", work.bytes},
                                  {"seconds", SecondsOf(Collective::kAllReduce, algorithm, ranks,
                                                        bytes, LinkOf(numbers))}};
          }};
}

// The size up to which recursive doubling is faster than a ring (Kim, Yeo, Oh 2021), also as a
// multiple of alpha / beta, which depends only on the number of ranks.
absl::StatusOr<FormulaResults> EvaluateButterflyLimit(const Numbers& numbers) {
  const int64_t ranks = numbers.Count("ranks");
  if (ranks < 2 || (ranks & (ranks - 1)) != 0) {
    return InvalidArgumentError("ranks must be a power of two, 2 or more");
  }
  // With two ranks, recursive doubling is faster for every size.
  if (ranks == 2) return FormulaResults{{"butterfly_always", 1}};
  const LinkProfile link = LinkOf(numbers);
  const double limit = ButterflyLimit(static_cast<int>(ranks), link);
  return FormulaResults{{"butterfly_always", 0},
                        {"bytes", limit},
                        {"bytes_over_alpha_beta", limit * link.beta / link.alpha}};
}

// The time of a step whose all-reduces overlap with the backward pass, as a recurrence: the
// all-reduce of a layer starts when its gradients are computed and the previous all-reduce has
// ended.
absl::StatusOr<FormulaResults> EvaluateOverlap(const Numbers& numbers) {
  const std::vector<double>& forward = numbers.List("forward");
  const std::vector<double>& backward = numbers.List("backward");
  const std::vector<double>& communication = numbers.List("communication");
  if (forward.size() != backward.size() || forward.size() != communication.size()) {
    return InvalidArgumentError(
        "forward, backward and communication must have one number per layer");
  }
  std::vector<LayerTimes> layers;
  for (size_t l = 0; l < forward.size(); ++l) {
    layers.push_back({forward[l], backward[l], communication[l]});
  }
  const StepTime time = OverlapRecurrence(layers);
  return FormulaResults{
      {"seconds", time.seconds}, {"exposed", time.exposed}, {"serial", time.serial}};
}

// A layer without a number of inputs is the first layer, which has no gradient of its input.
LayerShape LayerOf(const Numbers& numbers) {
  return {.first = numbers.Count("inputs") == 0,
          .weights = numbers.Count("weights"),
          .inputs = numbers.Count("inputs"),
          .outputs = numbers.Count("outputs")};
}

// Words (fp32 elements that a rank sends) of one layer on a pr x pc grid (Gholami et al. 2018):
// weights are split over pr ranks, samples over pc. Without a bandwidth only words and messages are
// reported.
absl::StatusOr<FormulaResults> EvaluateGrid(const Numbers& numbers) {
  const GridTerms terms = IntegratedTerms(
      LayerOf(numbers), {.pr = numbers.Count("pr"), .pc = numbers.Count("pc")}, numbers["batch"]);
  FormulaResults results = {{"all_gather_words", terms.forward.words},
                            {"input_gradient_words", terms.input_gradient.words},
                            {"weight_gradient_words", terms.weight_gradient.words},
                            {"words", terms.total().words},
                            {"messages", terms.total().messages}};
  if (numbers["bandwidth"] == 0) return results;
  const WordLink link = WordLink::OfBandwidth(numbers["alpha"], numbers["bandwidth"]);
  results.push_back({"seconds", terms.total().Seconds(link)});
  return results;
}

// The batch size below which splitting the weights of a layer moves fewer words than splitting its
// samples: by the simple rule of the paper, and exactly.
absl::StatusOr<FormulaResults> EvaluateBatchLimit(const Numbers& numbers) {
  return FormulaResults{{"simple", SimpleBatchLimit(LayerOf(numbers))},
                        {"exact", ExactBatchLimit(LayerOf(numbers))}};
}

// The words of the rows (the halo) that two neighbors exchange if images are split by height.
absl::StatusOr<FormulaResults> EvaluateHalo(const Numbers& numbers) {
  return FormulaResults{{"words", HaloWords(numbers["batch"], numbers.Count("width"),
                                            numbers.Count("channels"), numbers.Count("kernel"))}};
}

// The size of groups that minimizes the words of hybrid parallelism, in closed form (Joo, Youn
// 2021).
absl::StatusOr<FormulaResults> EvaluateGroup(const Numbers& numbers) {
  return FormulaResults{
      {"g_star", BestGroup(numbers["weights"], numbers["samples"], numbers["activations"])}};
}

// The network that a call describes layer by layer. The first layer has no gradient of its input.
// Words of whole networks are sums over layers and must fit into 64 bits.
absl::StatusOr<NetworkShape> NetworkOf(const Numbers& numbers) {
  const size_t layers = numbers.List("weights").size();
  for (const char* name : {"weights", "inputs", "outputs"}) {
    const std::vector<double>& list = numbers.List(name);
    if (list.size() != layers) {
      return InvalidArgumentError("weights, inputs and outputs must have one number per layer");
    }
    if (std::accumulate(list.begin(), list.end(), 0.0) > kMaxProduct) {
      return InvalidArgumentError(absl::StrCat("the sum of ", name, " is more than ", kMaxProduct));
    }
  }
  NetworkShape network{.flops = numbers["operations"]};
  for (size_t l = 0; l < layers; ++l) {
    network.layers.push_back({.convolution = l < numbers["convolutions"],
                              .first = l == 0,
                              .weights = numbers.Count("weights", l),
                              .inputs = numbers.Count("inputs", l),
                              .outputs = numbers.Count("outputs", l)});
  }
  return network;
}

// Pure data parallelism, pure model parallelism and groups of the given size, side by side.
absl::StatusOr<FormulaResults> EvaluateGroupHybrid(const Numbers& numbers) {
  CADRE_ASSIGN_OR_RETURN(const NetworkShape network, NetworkOf(numbers));
  const int64_t workers = numbers.Count("workers");
  const int64_t group = numbers.Count("group");
  if (workers % group != 0) {
    return InvalidArgumentError(
        absl::StrCat(workers, " workers cannot be divided into groups of ", group));
  }
  const HybridProblem problem = {
      .network = &network,
      .workers = workers,
      .batch = numbers["samples"] * numbers["workers"],
      .link = WordLink::OfBandwidth(numbers["alpha"], numbers["bandwidth"]),
      .flops = numbers["flops"]};
  return FormulaResults{{"g_star", BestGroup(problem)},
                        {"data_parallel_words", DataParallelCommunication(problem).words},
                        {"data_parallel_seconds", DataParallelSeconds(problem)},
                        {"model_parallel_words", ModelParallelCommunication(problem).words},
                        {"model_parallel_seconds", ModelParallelSeconds(problem)},
                        {"group_hybrid_words", GroupHybridCommunication(problem, group).words},
                        {"group_hybrid_seconds", GroupHybridSeconds(problem, group)},
                        {"state_bytes", HybridStateBytes(network, group)}};
}

// The rule that says when splitting the model is worthwhile (Pal et al. 2019). The gain is the
// speed-up of the split divided by the speed-up that more data-parallel devices reach, which need
// more epochs.
// The speed-ups themselves are only known if the epochs of one device are given.
absl::StatusOr<FormulaResults> EvaluateHybridRule(const Numbers& numbers) {
  const double threshold =
      HybridThreshold(numbers["devices"], numbers["efficiency"], numbers["more_efficiency"],
                      numbers["epochs"], numbers["more_epochs"]);
  FormulaResults results = {{"threshold", threshold}, {"gain", numbers["speedup"] / threshold}};
  const double of_one = numbers["epochs_of_one"];
  if (of_one == 0) return results;
  const double workers = numbers["workers"];
  results.push_back({"hybrid_speedup", HybridSpeedup(numbers["speedup"], numbers["efficiency"],
                                                     workers, of_one, numbers["epochs"])});
  results.push_back(
      {"data_speedup", DataParallelSpeedup(numbers["more_efficiency"], workers * numbers["devices"],
                                           of_one, numbers["more_epochs"])});
  return results;
}

absl::Status CheckProduct(const Numbers& numbers, const char* one, const char* other) {
  if (numbers[one] * numbers[other] <= kMaxProduct) return absl::OkStatus();
  return InvalidArgumentError(absl::StrCat(one, " times ", other, " is more than ", kMaxProduct));
}

// The traffic of averaging every tau steps (Lee et al. 2020), compared with synchronous steps, and
// the traffic saved per epoch if the number of samples is given.
absl::StatusOr<FormulaResults> EvaluateAveraging(const Numbers& numbers) {
  const int64_t n = numbers.Count("parameters");
  const int64_t groups = numbers.Count("groups");
  const int64_t ranks = numbers.Count("ranks");
  const int64_t tau = numbers.Count("tau");
  CADRE_RETURN_IF_ERROR(CheckProduct(numbers, "groups", "parameters"));
  CADRE_RETURN_IF_ERROR(CheckProduct(numbers, "groups", "batch"));
  FormulaResults results = {
      {"step_words", SynchronousStep(n, ranks).words},
      {"naive_across_words", AverageWithoutSlices(n, groups).words},
      {"across_words", AverageBySlices(n, groups, ranks).words},
      {"hierarchical_step_words", HierarchicalStep(n, groups, ranks, tau).words},
      {"synchronous_step_words", SynchronousStep(n, groups * ranks).words},
      {"synchronous_bytes_across_per_step", 1.0 * SynchronousBytesPerStep(n, groups)},
      {"saving_across", RoundTrafficRatio(groups, tau)}};
  const int64_t samples = numbers.Count("samples");
  if (samples == 0) return results;
  const int64_t batch = numbers.Count("batch");
  if (HierarchicalSteps(samples, groups, batch) == 0) {
    return InvalidArgumentError("samples are fewer than groups times batch, those of one step");
  }
  results.push_back({"synchronous_steps", 1.0 * SynchronousSteps(samples, batch)});
  results.push_back({"hierarchical_steps", 1.0 * HierarchicalSteps(samples, groups, batch)});
  results.push_back({"epoch_saving", EpochTrafficRatio(n, groups, ranks, tau, samples, batch)});
  return results;
}

// Compares the size of a fully connected layer's weight gradients with that of its activations. The
// larger of the two is better left in place.
absl::StatusOr<FormulaResults> EvaluateActivations(const Numbers& numbers) {
  const int64_t ranks = numbers.Count("ranks");
  const int64_t inputs = numbers.Count("inputs");
  const int64_t outputs = numbers.Count("outputs");
  const double gradient = WeightGradientWords(ranks, inputs, outputs);
  const double activations = ActivationWords(ranks, numbers.Count("batch"), inputs, outputs);
  return FormulaResults{{"gradient_words", gradient},
                        {"activation_words", activations},
                        {"ratio", gradient / activations}};
}

// The expected discrepancy of the groups, computed from the signal and the noise of their
// gradients.
absl::StatusOr<FormulaResults> EvaluateDiscrepancy(const Numbers& numbers) {
  if (numbers["signal"] == 0 && numbers["noise"] == 0) {
    return InvalidArgumentError("signal and noise are both 0");
  }
  return FormulaResults{
      {"gamma", ExpectedDiscrepancy(numbers["signal"], numbers["noise"], numbers["groups"])}};
}

// The table of formulas. `cadre formula` lists them in this order.
const std::vector<Formula> kFormulas = {
    AllReduceBy("ring", Algorithm::kRing),
    AllReduceBy("butterfly", Algorithm::kButterfly),
    AllReduceBy("halving-doubling", Algorithm::kHalvingDoubling),
    {"butterfly-limit",
     "Kim, Yeo, Oh 2021",
     {{"ranks", Kind::kRanks},
      {"alpha"},
      {"bandwidth", Kind::kPositive},
      {"gamma", Kind::kNumber, 0}},
     EvaluateButterflyLimit},
    {"overlap",
     "Kim, Yeo, Oh 2021",
     {{"forward", Kind::kNumbers}, {"backward", Kind::kNumbers}, {"communication", Kind::kNumbers}},
     EvaluateOverlap},
    {"grid",
     "Gholami et al. 2018",
     {{"pr", Kind::kRanks},
      {"pc", Kind::kRanks},
      {"batch", Kind::kCount},
      {"inputs", Kind::kCount, 0},
      {"outputs", Kind::kCount},
      {"weights", Kind::kCount},
      {"alpha", Kind::kNumber, 0},
      {"bandwidth", Kind::kPositive, 0}},
     EvaluateGrid},
    {"batch-limit",
     "Gholami et al. 2018",
     {{"weights", Kind::kCount}, {"outputs", Kind::kCount}, {"inputs", Kind::kCount, 0}},
     EvaluateBatchLimit},
    {"halo",
     "Gholami et al. 2018",
     {{"batch", Kind::kCount},
      {"width", Kind::kCount},
      {"channels", Kind::kCount},
      {"kernel", Kind::kCount}},
     EvaluateHalo},
    {"group",
     "Joo, Youn 2021",
     {{"weights", Kind::kCount}, {"samples", Kind::kCount}, {"activations", Kind::kCount}},
     EvaluateGroup},
    {"group-hybrid",
     "Joo, Youn 2021",
     {{"workers", Kind::kRanks},
      {"samples", Kind::kCount},
      {"group", Kind::kRanks},
      {"weights", Kind::kCounts},
      {"inputs", Kind::kCounts},
      {"outputs", Kind::kCounts},
      {"convolutions", Kind::kCount, 0},
      {"alpha"},
      {"bandwidth", Kind::kPositive},
      {"operations", Kind::kPositive, 0},
      {"flops", Kind::kPositive, 0}},
     EvaluateGroupHybrid},
    {"hybrid-rule",
     "Pal et al. 2019",
     {{"devices", Kind::kRanks},
      {"epochs", Kind::kPositive},
      {"more_epochs", Kind::kPositive},
      {"speedup", Kind::kPositive},
      {"efficiency", Kind::kPositive, 1},
      {"more_efficiency", Kind::kPositive, 1},
      {"workers", Kind::kRanks, 1},
      {"epochs_of_one", Kind::kPositive, 0}},
     EvaluateHybridRule},
    {"averaging",
     "Lee et al. 2020",
     {{"parameters", Kind::kCount},
      {"groups", Kind::kRanks},
      {"ranks", Kind::kRanks},
      {"tau", Kind::kCount, 1},
      {"samples", Kind::kCount, 0},
      {"batch", Kind::kCount, 1}},
     EvaluateAveraging},
    {"activations",
     "Lee et al. 2020",
     {{"ranks", Kind::kRanks},
      {"batch", Kind::kCount},
      {"inputs", Kind::kCount},
      {"outputs", Kind::kCount}},
     EvaluateActivations},
    {"discrepancy",
     "after Lee et al. 2020",
     {{"signal"}, {"noise"}, {"groups", Kind::kRanks}},
     EvaluateDiscrepancy},
};

absl::StatusOr<double> NumberOf(const FormulaParameter& parameter, absl::string_view text) {
  const Kind kind = parameter.kind;
  const bool count = kind == Kind::kRanks || kind == Kind::kCount || kind == Kind::kCounts;
  const double max = kind == Kind::kRanks ? kMaxRanks : kMaxCount;
  double value = 0;
  const bool number = absl::SimpleAtod(text, &value) && value >= 0 && std::isfinite(value);
  if (number && count && value >= 1 && value <= max && std::floor(value) == value) return value;
  if (number && !count && (value > 0 || kind != Kind::kPositive)) return value;
  return InvalidArgumentError(absl::StrCat(parameter.name, " is '", text, "', but must be ",
                                           kind == Kind::kRanks ? "a whole number, 1 to 1048576"
                                           : count              ? "a whole number, 1 to 9e15"
                                           : kind == Kind::kPositive ? "a number above 0"
                                                                     : "a number of at least 0"));
}

// `argument` is "parameter=numbers".
absl::Status SetNumbers(const Formula& formula, absl::string_view argument, Numbers& numbers) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(argument, absl::MaxSplits('=', 1));
  for (const FormulaParameter& parameter : formula.parameters) {
    if (parts.first != parameter.name) continue;
    if (numbers.Has(parts.first)) {
      return InvalidArgumentError(absl::StrCat("duplicate parameter ", parts.first));
    }
    const int commas = IsList(parameter.kind) ? kMaxNumbers : 0;
    std::vector<double> values;
    for (const absl::string_view text :
         absl::StrSplit(parts.second, absl::MaxSplits(',', commas))) {
      CADRE_ASSIGN_OR_RETURN(values.emplace_back(), NumberOf(parameter, text));
    }
    numbers.Set(parts.first, std::move(values));
    return absl::OkStatus();
  }
  return InvalidArgumentError(absl::StrCat(formula.name, " has no parameter '", parts.first, "'"));
}

std::string ParametersText(const Formula& formula) {
  return absl::StrJoin(
      formula.parameters, " ", [](std::string* out, const FormulaParameter& parameter) {
        const std::string text =
            absl::StrCat(parameter.name, "=", IsList(parameter.kind) ? "X,Y,..." : "X");
        absl::StrAppend(out, parameter.fallback ? absl::StrCat("[", text, "]") : text);
      });
}

}  // namespace

absl::StatusOr<FormulaResults> Evaluate(const std::string& name,
                                        const std::vector<std::string>& parameters) {
  const auto formula = std::find_if(kFormulas.begin(), kFormulas.end(),
                                    [&](const Formula& each) { return each.name == name; });
  if (formula == kFormulas.end()) {
    return InvalidArgumentError(
        absl::StrCat("unknown formula '", name, "'; 'cadre formula' lists them"));
  }
  Numbers numbers;
  for (const std::string& argument : parameters) {
    CADRE_RETURN_IF_ERROR(SetNumbers(*formula, argument, numbers));
  }
  for (const FormulaParameter& parameter : formula->parameters) {
    if (numbers.Has(parameter.name)) continue;
    if (!parameter.fallback) {
      return InvalidArgumentError(absl::StrCat("missing parameter ", parameter.name,
                                               "; usage: ", name, " ", ParametersText(*formula)));
    }
    numbers.Set(parameter.name, {*parameter.fallback});
  }
  CADRE_ASSIGN_OR_RETURN(FormulaResults results, formula->evaluate(numbers));
  for (const auto& [result, value] : results) {
    if (std::isfinite(value)) continue;
    return InvalidArgumentError(
        absl::StrCat(result, " is ", value, ": the numbers are too large or too small"));
  }
  return results;
}

std::vector<FormulaUsage> Formulas() {
  std::vector<FormulaUsage> usages;
  for (const Formula& formula : kFormulas) {
    usages.push_back({formula.name, ParametersText(formula), formula.source});
  }
  return usages;
}

}  // namespace cadre
