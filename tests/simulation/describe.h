// Formats messages as text of one line, for the log.
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre::simulation {

// Run, group, generation and rank, such as "run-1-simulated/0#7:1".
std::string Describe(const v1::RankSlot& place);
// Round and run.
std::string Describe(const v1::CommitRecord& commit);
// All fields, except for the run's spec and plan.
std::string Describe(const v1::MemberMessage& message);
std::string Describe(const v1::CoordinatorMessage& message);

}  // namespace cadre::simulation
