// The versions that the aggregators keep of runs, as a table.
//
// Thread-safe (pure function).
#pragma once

#include <string>

#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// The versions that can be exported, and to which the runs can be rolled back.
std::string VersionsTable(const google::protobuf::RepeatedPtrField<v1::RunStatus>& runs);

}  // namespace cadre
