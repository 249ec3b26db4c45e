// Messages in one line each, for the log.
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "proto/cadre/v1/membership.pb.h"

namespace cadre::simulation {

std::string Describe(const v1::RankSlot& place);
std::string Describe(const v1::MemberMessage& message);
std::string Describe(const v1::CoordinatorMessage& message);

}  // namespace cadre::simulation
