// Workers are assigned to groups host by host, so that fast links lie inside groups. Groups on
// equal hosts are of one kind and are planned once.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

struct GroupKind {
  // Of the first group of the kind, as HardwareOf (plan/search/hardware_model.h) takes it.
  int first_worker = 0;
  int64_t groups = 0;
};

// Ordered by their first groups; the counts add up to `groups`. A group within one host equals a
// group within any equal host. Requires: the profile is valid and has groups * ranks workers.
std::vector<GroupKind> KindsOfGroups(const v1::ClusterProfile& profile, int64_t groups,
                                     int64_t ranks);

}  // namespace cadre
