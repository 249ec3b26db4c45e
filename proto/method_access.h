// Who may call which method, by the options in the .proto files (cadre/v1/access.proto).
//
// Thread-safe (pure function).
#pragma once

#include <map>
#include <string>

#include "proto/cadre/v1/access.pb.h"

namespace cadre {

// All methods of all services by their path in a call, such as "/cadre.v1.Runs/Submit". A method
// without the option has ACCESS_UNSPECIFIED.
std::map<std::string, v1::Access> MethodAccess();

}  // namespace cadre
