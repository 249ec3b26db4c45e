// Reads, checks and prints cluster profiles: measured hosts, links and layer times.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Reads a text-format ClusterProfile. Errors: NotFound if there is no such file; InvalidArgument,
// naming file, line and field, for malformed text and for errors of CheckProfile.
absl::StatusOr<v1::ClusterProfile> ReadClusterProfile(const std::string& path);

// Errors: InvalidArgument, naming the field, for: no host; names that are missing or used twice;
// times, rates or counts that are negative, not finite, or 0 although 0 is not allowed; unknown
// devices or hosts; a pair of hosts without a link; a host of several workers without `inside`;
// more than 2^20 hosts of a kind, 2^20 workers of one host or 2^30 workers in total; seconds above
// 1e12.
absl::Status CheckProfile(const v1::ClusterProfile& profile);

// The text that ReadClusterProfile reads, with an explanatory comment.
std::string PrintClusterProfile(const v1::ClusterProfile& profile);

// The key of a model in profiles: 16 hexadecimal digits, equal for equal layers and inputs.
std::string ModelKey(const v1::Model& model);

}  // namespace cadre
