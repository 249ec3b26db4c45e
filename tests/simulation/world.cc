#include "tests/simulation/world.h"

#include "absl/strings/str_format.h"

namespace cadre::simulation {

void World::AddLine(const std::string& text) const {
  listener(absl::StrFormat("%12.6f  %s", absl::ToDoubleSeconds(timeline.elapsed()), text));
}

}  // namespace cadre::simulation
