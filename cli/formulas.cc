#include "cli/formulas.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/table.h"
#include "coordinator/cost/discrepancy.h"
#include "coordinator/cost/grid_cost.h"
#include "coordinator/cost/group_hybrid.h"
#include "coordinator/cost/hierarchical_averaging.h"
#include "coordinator/cost/overlap.h"
#include "coordinator/cost/time_to_accuracy.h"
#include "spec/collective_cost.h"

namespace cadre {
namespace {

// Counts are exact in double up to here; of ranks, groups and devices there are fewer.
constexpr double kMostCount = 9e15;
constexpr double kMostRanks = 1 << 20;
// Products of counts stay well inside 64 bits.
constexpr double kMostProduct = 1e18;
// Of a list.
constexpr int kMostNumbers = 100'000;

// A whole number of at least 1, the same of ranks, any number of at least 0, or above 0, or
// several.
enum class Kind { kCount, kRanks, kNumber, kPositive, kNumbers, kCounts };

bool IsList(Kind kind) { return kind == Kind::kNumbers || kind == Kind::kCounts; }

struct Input {
  const char* name;
  Kind kind = Kind::kNumber;
  // Where it may be left out.
  bool optional = false;
  double otherwise = 0;
};

// What was typed, by parameter; complete.
class Numbers {
 public:
  double operator[](const char* name) const { return values_.at(name).front(); }
  int64_t Count(const char* name) const { return static_cast<int64_t>((*this)[name]); }
  const std::vector<double>& List(const char* name) const { return values_.at(name); }
  bool Has(const std::string& name) const { return values_.contains(name); }
  void Set(const std::string& name, std::vector<double> values) {
    values_[name] = std::move(values);
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

using Results = std::vector<NamedNumber>;

struct Formula {
  const char* name;
  const char* source;
  std::vector<Input> parameters;
  std::function<absl::StatusOr<Results>(const Numbers&)> evaluate;
};

LinkProfile LinkOf(const Numbers& numbers) {
  return {.alpha = numbers["alpha"], .beta = 1 / numbers["bandwidth"], .gamma = numbers["gamma"]};
}

const std::vector<Input> kCollective = {{"ranks", Kind::kRanks},
                                        {"bytes", Kind::kCount},
                                        {"alpha"},
                                        {"bandwidth", Kind::kPositive},
                                        {"gamma", Kind::kNumber, true, 0}};

Formula AllReduceBy(const char* name, Algorithm algorithm) {
  return {name, "Thakur, Rabenseifner, Gropp 2005", kCollective,
          [algorithm](const Numbers& numbers) -> absl::StatusOr<Results> {
            const int ranks = static_cast<int>(numbers.Count("ranks"));
            const int64_t bytes = numbers.Count("bytes");
            const CollectiveWork work = WorkOf(Collective::kAllReduce, algorithm, ranks, bytes);
            return Results{{"messages", work.steps},
                           {"bytes", work.bytes},
                           {"seconds", SecondsOf(Collective::kAllReduce, algorithm, ranks, bytes,
                                                 LinkOf(numbers))}};
          }};
}

absl::StatusOr<Results> EvaluateButterflyLimit(const Numbers& numbers) {
  const int64_t ranks = numbers.Count("ranks");
  if (ranks < 2 || (ranks & (ranks - 1)) != 0) {
    return absl::InvalidArgumentError("ranks must be a power of two, 2 or more");
  }
  // Of two ranks: whatever the size.
  if (ranks == 2) return Results{{"butterfly_always", 1}};
  const LinkProfile link = LinkOf(numbers);
  const double limit = ButterflyLimit(static_cast<int>(ranks), link);
  return Results{{"butterfly_always", 0},
                 {"bytes", limit},
                 {"bytes_over_alpha_beta", limit * link.beta / link.alpha}};
}

absl::StatusOr<Results> EvaluateOverlap(const Numbers& numbers) {
  const std::vector<double>& forward = numbers.List("forward");
  const std::vector<double>& backward = numbers.List("backward");
  const std::vector<double>& communication = numbers.List("communication");
  if (forward.size() != backward.size() || forward.size() != communication.size()) {
    return absl::InvalidArgumentError(
        "forward, backward and communication need a number for each layer");
  }
  std::vector<LayerTimes> layers;
  for (size_t l = 0; l < forward.size(); ++l) {
    layers.push_back({forward[l], backward[l], communication[l]});
  }
  const StepTime time = OverlapRecurrence(layers);
  return Results{{"seconds", time.seconds}, {"exposed", time.exposed}, {"serial", time.serial}};
}

absl::StatusOr<Results> EvaluateGrid(const Numbers& numbers) {
  const LayerShape layer = {.first = numbers.Count("inputs") == 0,
                            .weights = numbers.Count("weights"),
                            .inputs = numbers.Count("inputs"),
                            .outputs = numbers.Count("outputs")};
  const GridTerms terms = IntegratedTerms(
      layer, {.pr = numbers.Count("pr"), .pc = numbers.Count("pc")}, numbers["batch"]);
  Results results = {{"all_gather_words", terms.forward.words},
                     {"input_gradient_words", terms.input_gradient.words},
                     {"weight_gradient_words", terms.weight_gradient.words},
                     {"words", terms.total().words},
                     {"messages", terms.total().messages}};
  if (numbers["bandwidth"] == 0) return results;
  const WordLink link = WordLink::OfBandwidth(numbers["alpha"], numbers["bandwidth"]);
  results.push_back({"seconds", terms.total().Seconds(link)});
  return results;
}

absl::StatusOr<Results> EvaluateBatchLimit(const Numbers& numbers) {
  const LayerShape layer = {.first = numbers.Count("inputs") == 0,
                            .weights = numbers.Count("weights"),
                            .inputs = numbers.Count("inputs"),
                            .outputs = numbers.Count("outputs")};
  return Results{{"simple", SimpleBatchLimit(layer)}, {"exact", ExactBatchLimit(layer)}};
}

absl::StatusOr<Results> EvaluateHalo(const Numbers& numbers) {
  return Results{{"words", HaloWords(numbers["batch"], numbers.Count("width"),
                                     numbers.Count("channels"), numbers.Count("kernel"))}};
}

absl::StatusOr<Results> EvaluateGroup(const Numbers& numbers) {
  return Results{
      {"g_star", BestGroup(numbers["weights"], numbers["samples"], numbers["activations"])}};
}

absl::StatusOr<NetworkShape> NetworkOf(const Numbers& numbers) {
  const std::vector<double>& weights = numbers.List("weights");
  const std::vector<double>& inputs = numbers.List("inputs");
  const std::vector<double>& outputs = numbers.List("outputs");
  if (weights.size() != inputs.size() || weights.size() != outputs.size()) {
    return absl::InvalidArgumentError("weights, inputs and outputs need a number for each layer");
  }
  NetworkShape network{.flops = numbers["operations"]};
  for (size_t l = 0; l < weights.size(); ++l) {
    network.layers.push_back({.convolution = l < static_cast<size_t>(numbers["convolutions"]),
                              .first = l == 0,
                              .weights = static_cast<int64_t>(weights[l]),
                              .inputs = static_cast<int64_t>(inputs[l]),
                              .outputs = static_cast<int64_t>(outputs[l])});
  }
  return network;
}

// Sums of the layers are taken in 64 bits.
absl::Status CheckSums(const Numbers& numbers) {
  for (const char* name : {"weights", "inputs", "outputs"}) {
    double sum = 0;
    for (const double value : numbers.List(name)) sum += value;
    if (sum > kMostProduct) return absl::InvalidArgumentError(absl::StrCat(name, " are too many"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Results> EvaluateGroupHybrid(const Numbers& numbers) {
  CADRE_RETURN_IF_ERROR(CheckSums(numbers));
  CADRE_ASSIGN_OR_RETURN(const NetworkShape network, NetworkOf(numbers));
  const int64_t workers = numbers.Count("workers");
  const int64_t group = numbers.Count("group");
  if (workers % group != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups of ", group, " do not divide ", workers, " workers"));
  }
  const HybridProblem problem = {
      .network = &network,
      .workers = workers,
      .batch = numbers["samples"] * numbers["workers"],
      .link = WordLink::OfBandwidth(numbers["alpha"], numbers["bandwidth"]),
      .flops = numbers["flops"]};
  return Results{{"g_star", BestGroup(problem)},
                 {"data_parallel_words", DataParallelCommunication(problem).words},
                 {"data_parallel_seconds", DataParallelSeconds(problem)},
                 {"model_parallel_words", ModelParallelCommunication(problem).words},
                 {"model_parallel_seconds", ModelParallelSeconds(problem)},
                 {"group_hybrid_words", GroupHybridCommunication(problem, group).words},
                 {"group_hybrid_seconds", GroupHybridSeconds(problem, group)},
                 {"state_bytes", HybridStateBytes(network, group)}};
}

absl::StatusOr<Results> EvaluateHybridRule(const Numbers& numbers) {
  const double threshold =
      HybridThreshold(numbers["devices"], numbers["efficiency"], numbers["more_efficiency"],
                      numbers["epochs"], numbers["more_epochs"]);
  Results results = {{"threshold", threshold}, {"gain", numbers["speedup"] / threshold}};
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
  if (numbers[one] * numbers[other] <= kMostProduct) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(one, " times ", other, " is more than ", kMostProduct));
}

absl::StatusOr<Results> EvaluateAveraging(const Numbers& numbers) {
  const int64_t n = numbers.Count("parameters");
  const int64_t groups = numbers.Count("groups");
  const int64_t ranks = numbers.Count("ranks");
  const int64_t tau = numbers.Count("tau");
  CADRE_RETURN_IF_ERROR(CheckProduct(numbers, "groups", "parameters"));
  CADRE_RETURN_IF_ERROR(CheckProduct(numbers, "groups", "batch"));
  Results results = {{"step_words", SynchronousStep(n, ranks).words},
                     {"naive_across_words", NaiveAcross(n, groups).words},
                     {"across_words", ShardedAcross(n, groups, ranks).words},
                     {"hierarchical_step_words", HierarchicalStep(n, groups, ranks, tau).words},
                     {"synchronous_step_words", SynchronousStep(n, groups * ranks).words},
                     {"synchronous_bytes_across_per_step",
                      static_cast<double>(SynchronousBytesPerStep(n, groups))},
                     {"saving_across", AggregationSaving(groups, tau)}};
  const int64_t samples = numbers.Count("samples");
  if (samples == 0) return results;
  const int64_t batch = numbers.Count("batch");
  if (HierarchicalSteps(samples, groups, batch) == 0) {
    return absl::InvalidArgumentError("samples are fewer than a step of all groups takes");
  }
  results.push_back({"synchronous_steps", static_cast<double>(SynchronousSteps(samples, batch))});
  results.push_back(
      {"hierarchical_steps", static_cast<double>(HierarchicalSteps(samples, groups, batch))});
  results.push_back({"epoch_saving", EpochSaving(n, groups, ranks, tau, samples, batch)});
  return results;
}

absl::StatusOr<Results> EvaluateActivations(const Numbers& numbers) {
  const int64_t ranks = numbers.Count("ranks");
  const int64_t inputs = numbers.Count("inputs");
  const int64_t outputs = numbers.Count("outputs");
  const double gradient = WeightGradientWords(ranks, inputs, outputs);
  const double activations = ActivationWords(ranks, numbers.Count("batch"), inputs, outputs);
  return Results{{"gradient_words", gradient},
                 {"activation_words", activations},
                 {"ratio", gradient / activations}};
}

absl::StatusOr<Results> EvaluateDiscrepancy(const Numbers& numbers) {
  if (numbers["signal"] == 0 && numbers["noise"] == 0) {
    return absl::InvalidArgumentError("signal and noise are both 0: nothing moves");
  }
  return Results{
      {"gamma", ExpectedDiscrepancy(numbers["signal"], numbers["noise"], numbers["groups"])}};
}

const std::vector<Formula>& Formulas() {
  constexpr Kind kCount = Kind::kCount;
  constexpr Kind kRanks = Kind::kRanks;
  constexpr Kind kPositive = Kind::kPositive;
  static const auto* const formulas = new std::vector<Formula>{
      AllReduceBy("ring", Algorithm::kRing),
      AllReduceBy("butterfly", Algorithm::kButterfly),
      AllReduceBy("halving-doubling", Algorithm::kHalvingDoubling),
      {"butterfly-limit",
       "Kim, Yeo, Oh 2021",
       {{"ranks", kRanks}, {"alpha"}, {"bandwidth", kPositive}, {"gamma", Kind::kNumber, true, 0}},
       EvaluateButterflyLimit},
      {"overlap",
       "Kim, Yeo, Oh 2021",
       {{"forward", Kind::kNumbers},
        {"backward", Kind::kNumbers},
        {"communication", Kind::kNumbers}},
       EvaluateOverlap},
      {"grid",
       "Gholami et al. 2018",
       {{"pr", kRanks},
        {"pc", kRanks},
        {"batch", kCount},
        {"inputs", kCount, true, 0},
        {"outputs", kCount},
        {"weights", kCount},
        {"alpha", Kind::kNumber, true, 0},
        {"bandwidth", kPositive, true, 0}},
       EvaluateGrid},
      {"batch-limit",
       "Gholami et al. 2018",
       {{"weights", kCount}, {"outputs", kCount}, {"inputs", kCount, true, 0}},
       EvaluateBatchLimit},
      {"halo",
       "Gholami et al. 2018",
       {{"batch", kCount}, {"width", kCount}, {"channels", kCount}, {"kernel", kCount}},
       EvaluateHalo},
      {"group",
       "Joo, Youn 2021",
       {{"weights", kCount}, {"samples", kCount}, {"activations", kCount}},
       EvaluateGroup},
      {"group-hybrid",
       "Joo, Youn 2021",
       {{"workers", kRanks},
        {"samples", kCount},
        {"group", kRanks},
        {"weights", Kind::kCounts},
        {"inputs", Kind::kCounts},
        {"outputs", Kind::kCounts},
        {"convolutions", kCount, true, 0},
        {"alpha"},
        {"bandwidth", kPositive},
        {"operations", kPositive, true, 0},
        {"flops", kPositive, true, 0}},
       EvaluateGroupHybrid},
      {"hybrid-rule",
       "Pal et al. 2019",
       {{"devices", kRanks},
        {"epochs", kPositive},
        {"more_epochs", kPositive},
        {"speedup", kPositive},
        {"efficiency", kPositive, true, 1},
        {"more_efficiency", kPositive, true, 1},
        {"workers", kRanks, true, 1},
        {"epochs_of_one", kPositive, true, 0}},
       EvaluateHybridRule},
      {"averaging",
       "Lee et al. 2020",
       {{"parameters", kCount},
        {"groups", kRanks},
        {"ranks", kRanks},
        {"tau", kCount, true, 1},
        {"samples", kCount, true, 0},
        {"batch", kCount, true, 1}},
       EvaluateAveraging},
      {"activations",
       "Lee et al. 2020",
       {{"ranks", kRanks}, {"batch", kCount}, {"inputs", kCount}, {"outputs", kCount}},
       EvaluateActivations},
      {"discrepancy",
       "after Lee et al. 2020",
       {{"signal"}, {"noise"}, {"groups", kRanks}},
       EvaluateDiscrepancy},
  };
  return *formulas;
}

absl::Status Refusal(absl::string_view parameter, absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(parameter, " is '", text, "'; give ", what));
}

struct Range {
  const char* what;
  bool whole;
  double least;
  double most;
};

Range RangeOf(Kind kind) {
  constexpr double kAny = std::numeric_limits<double>::max();
  switch (kind) {
    case Kind::kRanks:
      return {"a whole number, 1 to 1048576", true, 1, kMostRanks};
    case Kind::kCount:
    case Kind::kCounts:
      return {"a whole number of at least 1, at most 9e15", true, 1, kMostCount};
    case Kind::kPositive:
      return {"a number above 0", false, std::numeric_limits<double>::min(), kAny};
    case Kind::kNumber:
    case Kind::kNumbers:
      break;
  }
  return {"a number of at least 0", false, 0, kAny};
}

absl::StatusOr<double> NumberOf(const Input& input, absl::string_view text) {
  const Range range = RangeOf(input.kind);
  double value = 0;
  const bool fine = absl::SimpleAtod(text, &value) && value >= range.least && value <= range.most &&
                    (!range.whole || std::floor(value) == value);
  if (fine) return value;
  return Refusal(input.name, text, range.what);
}

absl::Status SetNumber(const Formula& formula, absl::string_view word, Numbers& numbers) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  for (const Input& input : formula.parameters) {
    if (parts.first != input.name) continue;
    if (numbers.Has(parts.first)) {
      return absl::InvalidArgumentError(absl::StrCat(parts.first, " is given twice"));
    }
    std::vector<double> values;
    for (const absl::string_view text : absl::StrSplit(
             parts.second, absl::MaxSplits(',', IsList(input.kind) ? kMostNumbers : 0))) {
      CADRE_ASSIGN_OR_RETURN(const double value, NumberOf(input, text));
      values.push_back(value);
    }
    numbers.Set(parts.first, std::move(values));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(formula.name, " has no parameter '", parts.first, "'"));
}

std::string ParametersText(const Formula& formula) {
  return absl::StrJoin(formula.parameters, " ", [](std::string* out, const Input& input) {
    const std::string word = absl::StrCat(input.name, "=", IsList(input.kind) ? "X,Y,..." : "X");
    absl::StrAppend(out, input.optional ? absl::StrCat("[", word, "]") : word);
  });
}

const Formula* FindFormula(const std::string& name) {
  for (const Formula& formula : Formulas()) {
    if (name == formula.name) return &formula;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::vector<NamedNumber>> Evaluate(const std::string& name,
                                                  const std::vector<std::string>& parameters) {
  const Formula* formula = FindFormula(name);
  if (formula == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no formula '", name, "'; 'cadre formula' lists them"));
  }
  Numbers numbers;
  for (const std::string& word : parameters) {
    CADRE_RETURN_IF_ERROR(SetNumber(*formula, word, numbers));
  }
  for (const Input& input : formula->parameters) {
    if (numbers.Has(input.name)) continue;
    if (!input.optional) {
      return absl::InvalidArgumentError(
          absl::StrCat(input.name, " is missing: ", name, " ", ParametersText(*formula)));
    }
    numbers.Set(input.name, {input.otherwise});
  }
  CADRE_ASSIGN_OR_RETURN(Results results, formula->evaluate(numbers));
  for (const NamedNumber& result : results) {
    if (std::isfinite(result.value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(result.name, " would be ", result.value,
                                                   ": these numbers are too large, too ",
                                                   "small, or divide by 0"));
  }
  return results;
}

std::string FormulasText() {
  Table table({"FORMULA", "PARAMETERS", "SOURCE"});
  for (const Formula& formula : Formulas()) {
    table.AddRow({formula.name, ParametersText(formula), formula.source});
  }
  return table.Text();
}

int ShowFormula(const GlobalOptions& global, const std::vector<std::string>& words,
                const Console& console) {
  if (words.empty()) {
    console.out << FormulasText() << std::flush;
    return kExitOk;
  }
  const auto results = Evaluate(words[0], {words.begin() + 1, words.end()});
  if (!results.ok()) {
    Fail(console, results.status());
    return kExitUsage;
  }
  JsonObject json;
  std::string text;
  for (const NamedNumber& number : *results) {
    json.Add(number.name, number.value);
    absl::StrAppend(&text, number.name, " ", JsonNumber(number.value), "\n");
  }
  const bool as_json = global.format == OutputFormat::kJson;
  console.out << (as_json ? Indent(json.Text()) + "\n" : text) << std::flush;
  return kExitOk;
}

}  // namespace cadre
