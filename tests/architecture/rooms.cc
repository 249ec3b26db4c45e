#include "tests/architecture/rooms.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cadre::architecture {
namespace {

constexpr absl::string_view kNone = "-";

// "`worker/comm/`, base" -> {"worker/comm", "base"}.
std::vector<std::string> NamesInCell(absl::string_view cell) {
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(absl::StrReplaceAll(cell, {{"`", ""}}), ',')) {
    absl::string_view name = absl::StripAsciiWhitespace(part);
    name = absl::StripSuffix(name, "/");
    if (!name.empty() && name != kNone) names.emplace_back(name);
  }
  return names;
}

// The cells of "| a | b |", trimmed; empty for a line that is not a row.
std::vector<std::string> CellsOf(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "|") || !absl::ConsumeSuffix(&line, "|")) return {};
  std::vector<std::string> cells = absl::StrSplit(line, '|');
  for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
  return cells;
}

}  // namespace

std::vector<Room> Rooms() {
  const std::set<std::string> below_houses = {"proto",  "base",    "tensor",
                                              "device", "kernels", "spec"};
  const auto with = [](std::set<std::string> names, const std::set<std::string>& more) {
    names.insert(more.begin(), more.end());
    return names;
  };
  return {
      {0, "proto", {}},
      {0, "base", {}},
      {1, "tensor", {"base"}},
      {1, "device", {"base"}},
      {2, "kernels", {"device", "tensor", "base"}},
      {2, "spec", {"tensor", "base", "proto"}},
      {3, "worker/transport", {"kernels", "device", "tensor", "base"}},
      {4, "worker/comm", {"worker/transport", "kernels", "device", "tensor", "base"}},
      {3, "worker/data", {"spec", "tensor", "base", "proto"}},
      {3, "coordinator/cost", {"spec", "tensor", "base", "proto"}},
      {3, "coordinator/placement", {"spec", "tensor", "base", "proto"}},
      {4, "coordinator/plan", {"coordinator/cost", "spec", "tensor", "base", "proto"}},
      {3, "server/client", {"spec", "tensor", "base", "proto"}},
      {3, "coordinator/client", {"spec", "tensor", "base", "proto"}},
      {5, "worker/nn", with({"worker/comm", "worker/transport"}, below_houses)},
      {5, "worker/optim", with({"worker/comm", "worker/transport"}, below_houses)},
      {6, "worker/train",
       with({"worker/transport", "worker/comm", "worker/data", "worker/nn", "worker/optim",
             "server/client"},
            below_houses)},
      {7, "worker/probe",
       with({"worker/transport", "worker/comm", "worker/nn", "worker/optim", "worker/train"},
            below_houses)},
      {8, "worker",
       with({"worker/transport", "worker/comm", "worker/data", "worker/nn", "worker/optim",
             "worker/train", "worker/probe", "coordinator/client", "server/client"},
            below_houses)},
      {8, "coordinator",
       with({"coordinator/plan", "coordinator/cost", "coordinator/client", "server/client"},
            below_houses)},
      {8, "server", with({"server/client", "coordinator/client"}, below_houses)},
      {8, "cli",
       with({"coordinator/plan", "coordinator/cost", "coordinator/placement", "coordinator/client",
             "server/client"},
            below_houses)},
  };
}

std::vector<Room> ParseRoomsTable(absl::string_view markdown) {
  const std::vector<std::string> header = {"floor", "room", "holds", "may include"};
  std::vector<Room> rooms;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(markdown, '\n')) {
    const std::vector<std::string> cells = CellsOf(line);
    if (!inside) {
      inside = cells == header;
      continue;
    }
    if (cells.size() != header.size()) break;
    int floor = 0;
    if (!absl::SimpleAtoi(cells[0], &floor)) continue;  // the rule under the header
    const std::vector<std::string> included = NamesInCell(cells[3]);
    for (const std::string& name : NamesInCell(cells[1])) {
      rooms.push_back({floor, name, {included.begin(), included.end()}});
    }
  }
  return rooms;
}

}  // namespace cadre::architecture
