// The result of a run, reported when it ends.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cli/render.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

struct Summary {
  // The run when it ended.
  v1::RunStatus run;
  // Each group slot when it last had members, by slot.
  std::map<uint32_t, v1::GroupStatus> groups;
  // Per group.
  uint32_t ranks = 0;
  uint32_t aggregators = 0;
  // Whether all processes ran on this machine.
  bool one_machine = false;
};

// Stores those groups that have members, with the parameters that the members hold. Updates of a
// run do not contain these: false if a group of theirs trains of which no status with details was
// kept.
bool KeepGroups(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups,
                Summary& summary);

// Scripts rely on the keys, so they must not change.
Json ToJson(const Summary& summary);

// At most 24 lines of 100 columns. Says which figures were measured and which computed.
std::string ToText(const Summary& summary);

}  // namespace cadre
