#include "coordinator/plan/search_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/plan/search.h"

namespace cadre {
namespace {

constexpr int kMostRanks = 65'536;
// One number of ranks after the other is looked at, until there were so many meshes; from there on
// powers of two.
constexpr int64_t kMostMeshes = 2'000;

// A plan's memory is a sum of layers', each with its own choice: so whether one fits is known
// without looking at moves.
bool SomePlanFits(const PlanProblem& problem, const SearchGraph& graph, int64_t& meshes) {
  for (const Mesh& mesh : MeshesFor(problem)) {
    ++meshes;
    const MeshSearch search(problem, graph, mesh, MeshSearch::Look::kBytes);
    if (search.unfulfilled() < 0 && search.LeastBytes() <= problem.machine.memory_bytes) {
      return true;
    }
  }
  return false;
}

// However a layer is cut, no rank has less than its share of it.
int64_t BytesTogether(const PlanProblem& problem) {
  PlanProblem alone = problem;
  alone.ranks = 1;
  alone.pins = Pins();
  return MeshSearch(alone, SearchGraph(alone), Mesh(), MeshSearch::Look::kBytes).LeastBytes();
}

// 0: none.
int RanksThatDo(PlanProblem problem) {
  const SearchGraph graph(problem);
  const int64_t least = std::max<int64_t>(int64_t{problem.ranks} + 1,
                                          BytesTogether(problem) / problem.machine.memory_bytes);
  int64_t meshes = 0;
  int64_t ranks = least;
  for (; ranks <= kMostRanks && meshes < kMostMeshes; ++ranks) {
    problem.ranks = static_cast<int>(ranks);
    if (SomePlanFits(problem, graph, meshes)) return problem.ranks;
  }
  int64_t power = 1;
  while (power < ranks) power *= 2;
  for (; power <= kMostRanks; power *= 2) {
    problem.ranks = static_cast<int>(power);
    if (SomePlanFits(problem, graph, meshes)) return problem.ranks;
  }
  return 0;
}

std::string Bytes(int64_t bytes) {
  if (bytes < 10'000'000) return absl::StrCat(bytes, " bytes");
  return absl::StrFormat("%d bytes (%.1f MB)", bytes, static_cast<double>(bytes) * 1e-6);
}

}  // namespace

absl::Status NoPlanFits(const PlanProblem& problem,
                        const std::vector<std::unique_ptr<MeshSearch>>& meshes) {
  const MeshSearch& leanest = **std::min_element(
      meshes.begin(), meshes.end(),
      [](const auto& a, const auto& b) { return a->LeastBytes() < b->LeastBytes(); });
  const auto [layer, most] = leanest.LargestLayer();
  const int64_t limit = problem.machine.memory_bytes;
  const int64_t needed = leanest.LeastBytes();
  std::string text = absl::StrCat(
      "no plan fits into the ", Bytes(limit), " of each of ", problem.ranks, " rank",
      problem.ranks == 1 ? "" : "s", ": the leanest, on mesh ", leanest.mesh().ToString(),
      ", needs ", Bytes(needed), ", ", Bytes(needed - limit), " more; most of that, ", Bytes(most),
      ", for layer '", (*problem.graph)[layer].name, "'");
  if (problem.pins.mesh.empty()) {
    const int ranks = RanksThatDo(problem);
    absl::StrAppend(&text, ranks > 0 ? absl::StrCat("; ", ranks, " ranks would do")
                                     : absl::StrCat("; no number of ranks up to ", kMostRanks,
                                                    " that was tried would do"));
  }
  return absl::ResourceExhaustedError(text);
}

}  // namespace cadre
