// From what every host knows of itself to the profile of them all: measures the links between every
// two hosts, and puts together what they say.
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/profile.pb.h"
#include "worker/probe/link_matrix.h"
#include "worker/transport/transport.h"

namespace cadre {

// A collective of the hosts, one rank each; everybody gets the same. `own`: of this host alone, as
// ProbeMachine makes it. Errors: those of MeasureLinkMatrix; InvalidArgument for hosts that tell of
// another number of hosts than one.
absl::StatusOr<v1::ClusterProfile> ProbeHosts(const v1::ClusterProfile& own, Transport& transport,
                                              absl::Time deadline);

// The same over TCP: `peers` has host:port of every host, by rank; this one listens on its own. By
// `meet_by` all must have come. Errors: also those of listening and connecting; DeadlineExceeded
// names who has not come.
absl::StatusOr<v1::ClusterProfile> ProbeHosts(const v1::ClusterProfile& own,
                                              const std::vector<std::string>& peers, int rank,
                                              absl::Time meet_by, absl::Time deadline);

// Hosts in the order given; those that call themselves alike get numbers. Devices of one name are
// taken for one kind. Requires: each profile has one host and its device; as many links.
v1::ClusterProfile JoinProfiles(const std::vector<v1::ClusterProfile>& hosts,
                                const LinkMatrix& links);

}  // namespace cadre
