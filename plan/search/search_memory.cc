// Part of plan/search/search_mesh.h: NoPlanFits.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/counted_noun.h"
#include "model/problem.h"
#include "plan/search/search.h"
#include "plan/search/search_mesh.h"

namespace cadre {
namespace {

constexpr int kMaxRanks = 65'536;
// Numbers of ranks are tried one by one until so many meshes were examined, then powers of two.
constexpr int64_t kMaxMeshes = 2'000;

// A plan's memory is a sum over layers, each with its own options, so the minimum memory of any
// plan is known without minimising seconds.
bool SomePlanFits(const PlanProblem& problem, const SearchGraph& graph, int64_t& meshes) {
  for (const Mesh& mesh : MeshesFor(problem)) {
    ++meshes;
    const MeshSearch search(problem, graph, mesh, MeshSearch::Terms::kBytesOnly);
    if (search.unsatisfied() < 0 && search.MinBytes() <= problem.hardware.memory_bytes) {
      return true;
    }
  }
  return false;
}

// The memory of the model on one rank. However layers are split, some rank needs its share of it.
int64_t BytesOnOneRank(const PlanProblem& problem) {
  PlanProblem alone = problem;
  alone.ranks = 1;
  alone.pins = Pins();
  return MeshSearch(alone, SearchGraph(alone), Mesh(), MeshSearch::Terms::kBytesOnly).MinBytes();
}

// The minimum number of ranks with a plan that fits; 0: none was found.
int SufficientRanks(PlanProblem problem) {
  const SearchGraph graph(problem);
  const int64_t minimum = std::max<int64_t>(
      int64_t{problem.ranks} + 1, BytesOnOneRank(problem) / problem.hardware.memory_bytes);
  int64_t meshes = 0;
  int64_t ranks = minimum;
  for (; ranks <= kMaxRanks && meshes < kMaxMeshes; ++ranks) {
    problem.ranks = ranks;
    if (SomePlanFits(problem, graph, meshes)) return problem.ranks;
  }
  int64_t power = 1;
  while (power < ranks) power *= 2;
  for (; power <= kMaxRanks; power *= 2) {
    problem.ranks = power;
    if (SomePlanFits(problem, graph, meshes)) return problem.ranks;
  }
  return 0;
}

std::string Bytes(int64_t bytes) {
  if (bytes < 10'000'000) return absl::StrCat(bytes, " bytes");
  return absl::StrFormat("%d bytes (%.1f MB)", bytes, bytes * 1e-6);
}

}  // namespace

absl::Status NoPlanFits(const PlanProblem& problem,
                        const std::vector<std::unique_ptr<MeshSearch>>& meshes, bool explains) {
  const MeshSearch& smallest = **std::min_element(
      meshes.begin(), meshes.end(),
      [](const auto& a, const auto& b) { return a->MinBytes() < b->MinBytes(); });
  const auto [layer, layer_bytes] = smallest.LargestLayer();
  const int64_t limit = problem.hardware.memory_bytes;
  const int64_t needed = smallest.MinBytes();
  std::string text = absl::StrCat(
      "no plan fits into the ", Bytes(limit), " of each of ", Counted(problem.ranks, "rank"),
      ": the plan of minimum memory, on mesh ", smallest.mesh().ToString(), ", needs ",
      Bytes(needed), ", ", Bytes(needed - limit), " more; most of that, ", Bytes(layer_bytes),
      ", for layer '", (*problem.graph)[layer].name, "'");
  if (explains && problem.pins.mesh.empty()) {
    const int ranks = SufficientRanks(problem);
    absl::StrAppend(&text, ranks > 0 ? absl::StrCat("; ", ranks, " ranks would suffice")
                                     : absl::StrCat("; no number of ranks up to ", kMaxRanks,
                                                    " that was tried would suffice"));
  }
  return absl::ResourceExhaustedError(text);
}

}  // namespace cadre
