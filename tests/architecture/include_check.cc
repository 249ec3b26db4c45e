#include "tests/architecture/include_check.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cadre::architecture {
namespace {

// Third-party headers that we write in quotes.
constexpr absl::string_view kOutside[] = {"absl/",   "gflags/", "glog/", "gmock/",
                                          "google/", "grpcpp/", "gtest/"};

bool IsOutside(absl::string_view target) {
  return std::any_of(std::begin(kOutside), std::end(kOutside),
                     [&](absl::string_view prefix) { return absl::StartsWith(target, prefix); });
}

const Room* Find(const std::vector<Room>& rooms, absl::string_view name) {
  const auto it =
      std::find_if(rooms.begin(), rooms.end(), [&](const Room& room) { return room.name == name; });
  return it == rooms.end() ? nullptr : &*it;
}

// The program or shared room that a folder belongs to: "worker/nn" -> "worker".
absl::string_view HouseOf(absl::string_view room) { return room.substr(0, room.find('/')); }

// Why the arrow is forbidden, in the words of the rule it breaks.
std::string Reason(const Room& from, const Room& to) {
  const std::string arrow = absl::StrCat(from.name, " may not include ", to.name, ": ");
  const bool both_houses = to.floor >= 3 && from.floor >= 3;
  if (both_houses && HouseOf(from.name) != HouseOf(to.name) && !absl::EndsWith(to.name, "/client"))
    return absl::StrCat(arrow, "programs meet in proto/ and lend only their client/ folder");
  if (to.floor > from.floor)
    return absl::StrCat(arrow, "arrow upward, from floor ", from.floor, " to floor ", to.floor);
  if (to.floor == from.floor)
    return absl::StrCat(arrow, "arrow sideways, both are on floor ", to.floor);
  return absl::StrCat(arrow, "not in its row of the table of rooms");
}

// One include that leads from one room to another.
struct Arrow {
  std::string path;
  int line = 0;
};
// from -> to -> the first include that draws the arrow.
using Graph = std::map<std::string, std::map<std::string, Arrow>>;

// Depth-first search that reports the arrow back to a room still on the path.
class CircleFinder {
 public:
  explicit CircleFinder(const Graph& graph) : graph_(graph) {}

  std::vector<Violation> Find() {
    for (const auto& [room, unused] : graph_) Visit(room);
    return std::move(found_);
  }

 private:
  void Visit(const std::string& room) {
    if (!seen_.insert(room).second) return;
    path_.push_back(room);
    if (const auto it = graph_.find(room); it != graph_.end()) {
      for (const auto& [next, arrow] : it->second) {
        const auto start = std::find(path_.begin(), path_.end(), next);
        if (start == path_.end()) {
          Visit(next);
        } else {
          found_.push_back({arrow.path, arrow.line,
                            absl::StrCat("circle among rooms: ",
                                         absl::StrJoin(start, path_.end(), " -> "), " -> ", next)});
        }
      }
    }
    path_.pop_back();
  }

  const Graph& graph_;
  std::set<std::string> seen_;
  std::vector<std::string> path_;
  std::vector<Violation> found_;
};

// Drops what stands inside /* */ on this line; `inside` carries over to the next one.
std::string WithoutBlockComments(absl::string_view line, bool& inside) {
  std::string kept;
  while (!line.empty()) {
    const size_t mark = line.find(inside ? "*/" : "/*");
    if (!inside) absl::StrAppend(&kept, line.substr(0, mark));
    if (mark == absl::string_view::npos) break;
    line.remove_prefix(mark + 2);
    inside = !inside;
  }
  return kept;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Violation& violation) {
  return out << violation.path << ":" << violation.line << ": " << violation.message;
}

std::vector<Include> ParseIncludes(absl::string_view text) {
  std::vector<Include> includes;
  bool in_comment = false;
  int number = 0;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string cleaned = WithoutBlockComments(raw, in_comment);
    absl::string_view line = absl::StripLeadingAsciiWhitespace(cleaned);
    if (!absl::ConsumePrefix(&line, "#")) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, "include")) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (line.empty() || (line[0] != '"' && line[0] != '<')) continue;
    const bool quoted = line[0] == '"';
    line.remove_prefix(1);
    includes.push_back(
        {number, std::string(line.substr(0, line.find(quoted ? '"' : '>'))), quoted});
  }
  return includes;
}

std::vector<SourceFile> ReadSources(const std::filesystem::path& root,
                                    const std::vector<Room>& rooms) {
  std::set<std::string> houses;
  for (const Room& room : rooms) houses.emplace(HouseOf(room.name));
  std::vector<SourceFile> files;
  for (const std::string& house : houses) {
    if (!std::filesystem::is_directory(root / house)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / house)) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cc")) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      files.push_back({entry.path().lexically_relative(root).generic_string(),
                       std::string(std::istreambuf_iterator<char>(in), {})});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::string RoomOf(absl::string_view path, const std::vector<Room>& rooms) {
  std::string best;
  for (const Room& room : rooms) {
    if (absl::StartsWith(path, room.name + "/") && room.name.size() > best.size()) best = room.name;
  }
  return best;
}

std::vector<Violation> CheckIncludes(const std::vector<Room>& rooms,
                                     const std::vector<SourceFile>& files) {
  std::vector<Violation> violations;
  Graph graph;
  for (const SourceFile& file : files) {
    const Room* from = Find(rooms, RoomOf(file.path, rooms));
    if (from == nullptr) {
      violations.push_back({file.path, 1, "this file is in no room"});
      continue;
    }
    for (const Include& include : ParseIncludes(file.text)) {
      const Room* to = Find(rooms, RoomOf(include.target, rooms));
      if (to == nullptr) {
        if (include.quoted && !IsOutside(include.target)) {
          violations.push_back({file.path, include.line,
                                absl::StrCat("\"", include.target, "\" starts at no room")});
        }
        continue;
      }
      if (!include.quoted) {
        violations.push_back({file.path, include.line,
                              absl::StrCat("<", include.target, "> is ours: write it in quotes")});
      }
      if (to == from) continue;
      graph[from->name].try_emplace(to->name, Arrow{file.path, include.line});
      if (!from->may_include.contains(to->name)) {
        violations.push_back({file.path, include.line, Reason(*from, *to)});
      }
    }
  }
  for (Violation& circle : CircleFinder(graph).Find()) violations.push_back(std::move(circle));
  return violations;
}

std::vector<std::string> CheckTable(const std::vector<Room>& rooms) {
  std::vector<std::string> faults;
  for (const Room& room : rooms) {
    for (const std::string& name : room.may_include) {
      const Room* to = Find(rooms, name);
      if (to == nullptr) {
        faults.push_back(absl::StrCat(room.name, " may include ", name, ", which is no room"));
      } else if (to->floor >= room.floor) {
        faults.push_back(absl::StrCat(room.name, " may include ", name, ", which is not below it"));
      }
    }
  }
  return faults;
}

}  // namespace cadre::architecture
