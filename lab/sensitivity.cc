// Each variation changes one input and searches again. Interpolation is not possible, since the
// best plan changes abruptly with its inputs. The timed transfers in the link's profile scale like
// its bandwidth; its latency does not change. A limit of one byte less than the answer needs
// excludes the answer and shows how much time that memory saves.
#include "lab/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/search/recomputing_search.h"

namespace cadre {
namespace {

// The largest product of layers and meshes that a search covers in well under a tenth of a second.
constexpr int64_t kMaxCheapStates = 4'000;

LinkProfile ScaleLink(LinkProfile link, double factor) {
  link.beta /= factor;
  for (LinkProfile::Sample& sample : link.samples) sample.seconds /= factor;
  return link;
}

Variation SearchVariation(const SearchResult& answer, const PlanProblem& problem,
                          Variation variation) {
  absl::StatusOr<SearchResult> searched = Search(problem);
  if (!searched.ok()) {
    variation.note = std::string(searched.status().message());
    return variation;
  }
  variation.candidate = std::move(searched->best);
  const Plan& plan = variation.candidate->plan;
  variation.other_mesh = !(plan.mesh == answer.best.plan.mesh);
  variation.other_blocks = plan.recomputed != answer.best.plan.recomputed;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerLayouts& before = answer.best.plan.layers[l];
    if (plan.layers[l].splits != before.splits || plan.layers[l].at != before.at) {
      ++variation.other_layers;
    }
  }
  return variation;
}

}  // namespace

std::vector<Variation> VaryInputs(const PlanQuestion& question, const SearchResult& answer) {
  std::vector<Variation> variations;
  for (const double factor : {0.25, 0.5, 2.0, 4.0}) {
    PlanProblem problem = question.problem;
    HardwareModel& hardware = problem.hardware;
    hardware.link = ScaleLink(hardware.link, factor);
    if (hardware.inside.known()) hardware.inside = ScaleLink(hardware.inside, factor);
    variations.push_back(SearchVariation(
        answer, problem,
        {.what = "bandwidth", .factor = factor, .value = 1 / problem.hardware.link.beta}));
  }
  for (const double factor : {0.5, 2.0}) {
    PlanProblem problem = question.problem;
    problem.batch = std::ceil(problem.batch * factor);
    Variation variation{.what = "batch", .factor = factor};
    variation.value = problem.batch;
    variations.push_back(SearchVariation(answer, problem, std::move(variation)));
  }
  const auto with_less_memory_than = [&](int64_t bytes) {
    PlanProblem problem = question.problem;
    problem.hardware.memory_bytes = std::max<int64_t>(1, bytes - 1);
    Variation memory{.what = "memory"};
    memory.value = problem.hardware.memory_bytes;
    return SearchVariation(answer, problem, std::move(memory));
  };
  variations.push_back(with_less_memory_than(answer.best.prediction.memory_bytes));
  // The search may know the plan's exact memory, which is less than what it predicts.
  if (!variations.back().changes()) {
    variations.back() = with_less_memory_than(MemoryOf(question.problem, answer.best));
  }
  return variations;
}

bool VaryingIsCheap(const PlanQuestion& question, const SearchResult& answer) {
  return answer.meshes * question.graph.size() <= kMaxCheapStates;
}

}  // namespace cadre
