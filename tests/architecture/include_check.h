// Reads the #include lines of a source tree and names every one that the table of rooms forbids.
//
//   for (const Violation& v : CheckIncludes(Rooms(), ReadSources(root, Rooms()))) LOG(ERROR) << v;
#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/architecture/rooms.h"

namespace cadre::architecture {

struct SourceFile {
  // Relative to the repository, with '/'.
  std::string path;
  std::string text;
};

struct Violation {
  std::string path;
  int line = 0;
  std::string message;
};

// "path:line: message", as compilers write it.
std::ostream& operator<<(std::ostream& out, const Violation& violation);

struct Include {
  int line = 0;
  // As written between the quotes or angle brackets.
  std::string target;
  bool quoted = false;
};

// The #include lines of one file; those inside block comments do not count.
std::vector<Include> ParseIncludes(absl::string_view text);

// Every .h and .cc file below the folders of `rooms`, sorted by path.
// Requires: `root` is the repository.
std::vector<SourceFile> ReadSources(const std::filesystem::path& root,
                                    const std::vector<Room>& rooms);

// The room that a file belongs to: the longest room name that is a folder of its path; empty if
// none is.
std::string RoomOf(absl::string_view path, const std::vector<Room>& rooms);

// Arrows that the table forbids, includes of ours that start at no room, and circles among rooms
// (at the include that closes the circle). Empty for a sound tree.
std::vector<Violation> CheckIncludes(const std::vector<Room>& rooms,
                                     const std::vector<SourceFile>& files);

// What is wrong with the table itself: a name that is no room, or an arrow that does not go down.
std::vector<std::string> CheckTable(const std::vector<Room>& rooms);

}  // namespace cadre::architecture
