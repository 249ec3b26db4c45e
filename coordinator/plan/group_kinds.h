// The groups that workers make who are taken host by host, so that fast links lie inside: of which
// kinds they are. Groups that see equal hosts are of one kind and need planning once.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

struct GroupKind {
  // Of the first group of the kind, as MachineOf (coordinator/plan/machine.h) takes it.
  int first_worker = 0;
  int64_t groups = 0;
};

// In the order of their first groups; together they have all `groups`. A group within one host is
// like any other on a like host. Requires: the profile is in order and has groups * ranks workers.
std::vector<GroupKind> KindsOfGroups(const v1::ClusterProfile& profile, int64_t groups,
                                     int64_t ranks);

}  // namespace cadre
