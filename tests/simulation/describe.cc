#include "tests/simulation/describe.h"

#include "absl/strings/str_cat.h"

namespace cadre::simulation {

std::string Describe(const v1::RankSlot& place) {
  return absl::StrCat(place.run(), "/", place.group(), "#", place.generation(), ":", place.rank());
}

std::string Describe(const v1::CommitRecord& commit) {
  return absl::StrCat("round ", commit.round(), " of ", commit.run());
}

std::string Describe(const v1::MemberMessage& message) {
  v1::MemberMessage brief = message;
  if (brief.has_hello()) brief.mutable_hello()->clear_protocol();
  if (brief.has_prepared()) brief.mutable_prepared()->clear_plan();
  return brief.ShortDebugString();
}

std::string Describe(const v1::CoordinatorMessage& message) {
  v1::CoordinatorMessage brief = message;
  if (brief.has_assignment()) {
    brief.mutable_assignment()->clear_spec();
    brief.mutable_assignment()->clear_plan();
  }
  if (brief.has_open_run()) brief.mutable_open_run()->clear_spec();
  return brief.ShortDebugString();
}

}  // namespace cadre::simulation
