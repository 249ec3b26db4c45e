#include "tests/simulation/world.h"

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace cadre::simulation {
namespace {

constexpr size_t kLastLines = 80;
constexpr char kViolation[] = "VIOLATION";

}  // namespace

void World::AddLine(const std::string& text) {
  if (violation && !last_lines.empty() && absl::StrContains(last_lines.back(), kViolation)) return;
  std::string line = absl::StrFormat("%12.6f  %s", absl::ToDoubleSeconds(timeline.elapsed()), text);
  if (listener) listener(line);
  last_lines.push_back(std::move(line));
  if (last_lines.size() > kLastLines) last_lines.pop_front();
}

}  // namespace cadre::simulation
