#include "base/numa.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/hardware.h"
#include "base/status.h"

namespace cadre {
namespace {

// Parses "A" or "A-B" into the first and the last number.
bool ParseRange(absl::string_view text, int* first, int* last) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  return absl::SimpleAtoi(ends.first, first) &&
         absl::SimpleAtoi(absl::StrContains(text, '-') ? ends.second : ends.first, last) &&
         0 <= *first && *first <= *last && *last < kMaxCpus;
}

// Reads a file with one list such as "0-3,8", or an empty one. Returns ascending numbers.
absl::StatusOr<std::vector<int>> ReadList(const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoStatus(errno, "read", path);
  std::string line;
  std::getline(file, line);
  std::vector<int> numbers;
  for (const absl::string_view range : absl::StrSplit(line, ',', absl::SkipWhitespace())) {
    int first = 0;
    int last = 0;
    if (!ParseRange(range, &first, &last)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": '", range, "' is not a range"));
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

absl::StatusOr<std::vector<NumaNode>> NumaNodesOf(const std::vector<int>& cpus,
                                                  const std::string& folder) {
  const absl::StatusOr<std::vector<int>> online = ReadList(folder + "/online");
  if (absl::IsNotFound(online.status())) return std::vector<NumaNode>{{.cpus = cpus}};
  CADRE_RETURN_IF_ERROR(online.status());
  std::vector<NumaNode> nodes;
  for (const int number : *online) {
    CADRE_ASSIGN_OR_RETURN(const std::vector<int> all,
                           ReadList(absl::StrCat(folder, "/node", number, "/cpulist")));
    NumaNode node{.number = number};
    std::set_intersection(all.begin(), all.end(), cpus.begin(), cpus.end(),
                          std::back_inserter(node.cpus));
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<NumaNode> UsableNumaNodes() {
  return NumaNodesOf(UsableCpus()).value_or(std::vector<NumaNode>());
}

std::optional<int> NumaNodeOfProcess(const std::vector<NumaNode>& nodes, int process, int processes,
                                     int threads) {
  if (nodes.size() < 2) return std::nullopt;
  int64_t cpus = 0;
  for (const NumaNode& node : nodes) cpus += std::ssize(node.cpus);
  int64_t first = cpus * process / processes;
  auto node = nodes.begin();
  for (; first >= std::ssize(node->cpus); ++node) first -= std::ssize(node->cpus);
  if (threads > std::ssize(node->cpus)) return std::nullopt;
  return node->number;
}

absl::Status BindToNumaNode(int number, const std::string& folder) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<NumaNode> nodes, NumaNodesOf(UsableCpus(), folder));
  const auto node = std::find_if(nodes.begin(), nodes.end(),
                                 [&](const NumaNode& each) { return each.number == number; });
  if (node == nodes.end()) {
    const auto append = [](std::string* out, const NumaNode& each) {
      absl::StrAppend(out, each.number);
    };
    return absl::InvalidArgumentError(absl::StrCat(
        "NUMA node ", number, " has no CPU that this process may use; nodes with such CPUs: ",
        absl::StrJoin(nodes, ", ", append)));
  }
  return BindToCpus(node->cpus);
}

}  // namespace cadre
