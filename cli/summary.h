// What a run came to, told at its end.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "proto/cadre/v1/control.pb.h"

namespace cadre {

struct Summary {
  // The run as it ended.
  v1::RunStatus run;
  // Each group slot as it was when it last had members, by slot.
  std::map<uint32_t, v1::GroupStatus> groups;
  uint32_t ranks = 0;
  uint32_t aggregators = 0;
};

// Remembers the groups of an update that have members, with what these hold.
void KeepGroups(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups,
                Summary& summary);

// One line, one object; names are fixed, scripts rely on them.
std::string SummaryJson(const Summary& summary);

// A table for people; says which figures were measured and which computed.
std::string SummaryText(const Summary& summary);

}  // namespace cadre
