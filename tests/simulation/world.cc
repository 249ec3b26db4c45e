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
  // FNV-1a: enough to tell logs apart.
  for (const char c : line) log_hash = (log_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  ++lines;
  if (listener) listener(line);
  last_lines.push_back(std::move(line));
  if (last_lines.size() > kLastLines) last_lines.pop_front();
}

}  // namespace cadre::simulation
