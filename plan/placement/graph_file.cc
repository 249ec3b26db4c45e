#include "plan/placement/graph_file.h"

#include "base/file.h"
#include "base/status.h"
#include "model/text_message.h"

namespace cadre {
namespace {

// Fits the largest graph that is allowed.
constexpr int64_t kMaxGraphBytes = 32 << 20;

}  // namespace

absl::StatusOr<PlacementProblem> ReadOperatorGraph(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxGraphBytes));
  return ParseOperatorGraph(path, text);
}

absl::StatusOr<PlacementProblem> ParseOperatorGraph(const std::string& path,
                                                    const std::string& text) {
  v1::OperatorGraph graph;
  CADRE_ASSIGN_OR_RETURN(const TextLocations places,
                         ParseTextMessage(path, text, "an operator graph", graph));
  CADRE_RETURN_IF_ERROR(places.Refuse(FindGraphProblems(graph)));
  return PlacementProblemOf(graph);
}

}  // namespace cadre
