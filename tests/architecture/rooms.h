// The table of rooms: which source folder may include which. docs/architecture.md shows the same
// table to readers; includes_test holds the two together.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::architecture {

struct Room {
  // Arrows go down: a room may include only rooms on lower floors.
  int floor = 0;
  // The folder, relative to the repository.
  std::string name;
  std::set<std::string> may_include;

  friend bool operator==(const Room&, const Room&) = default;
};

// Bottom floor first.
std::vector<Room> Rooms();

// The rows of the first Markdown table in `markdown` whose header is
// | floor | room | holds | may include |. A cell may name several rooms, separated by commas, in
// backticks or not; "-" means none. Empty when there is no such table.
std::vector<Room> ParseRoomsTable(absl::string_view markdown);

}  // namespace cadre::architecture
