// Combines the profiles of several hosts into one cluster profile: measures the links between every
// two hosts and joins their hosts and devices.
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/transport.h"
#include "proto/cadre/v1/profile.pb.h"
#include "worker/probe/link_matrix.h"

namespace cadre {

// A collective of the hosts, one rank each; all ranks get the same result. `own`: the profile of
// this host alone, as ProbeMachine returns it. Errors: those of MeasureLinkMatrix; InvalidArgument
// if a profile does not contain exactly one host and one device.
absl::StatusOr<v1::ClusterProfile> ProbeHosts(const v1::ClusterProfile& own, Transport& transport,
                                              absl::Time deadline);

// The same over TCP: `peers` has host:port of every host, by rank, and this host listens on its
// own. All hosts must connect by `meet_by`. Errors: also those of listening and connecting;
// DeadlineExceeded names a host that did not connect.
absl::StatusOr<v1::ClusterProfile> ProbeHosts(const v1::ClusterProfile& own,
                                              const std::vector<std::string>& peers, int rank,
                                              absl::Time meet_by, absl::Time deadline);

// Joins profiles, with their hosts in the same order. Hosts with equal names are numbered; devices
// with equal names are merged. Requires: each profile has one host and one device, and `links` has
// one row for each.
v1::ClusterProfile JoinProfiles(const std::vector<v1::ClusterProfile>& hosts,
                                const LinkMatrix& links);

}  // namespace cadre
