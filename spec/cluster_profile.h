// Cluster profiles as values: read, checked, printed.
//
// Thread-safe (pure functions but for the file).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/problem.h"

namespace cadre {

// A text-format ClusterProfile. Errors: NotFound for no such file; InvalidArgument naming file,
// line and field for text that is none, and whatever CheckProfile finds.
absl::StatusOr<v1::ClusterProfile> ReadClusterProfile(const std::string& path);

// The same for text that is there already; `name` is what errors call it.
absl::StatusOr<v1::ClusterProfile> ParseClusterProfile(absl::string_view text,
                                                       const std::string& name);

// Errors: InvalidArgument naming the field: no host; names that are missing or used twice; times,
// rates or counts that are negative or not finite (or 0 where they must not be); devices or hosts
// that are not there; a pair of hosts without a link; workers of one host without `inside`; more
// than 2^20 machines of a kind, 2^20 workers of one or 2^30 in all; seconds above 1e12.
absl::Status CheckProfile(const v1::ClusterProfile& profile);

// The same one by one, with the path of each field.
std::vector<Problem> FindProfileProblems(const v1::ClusterProfile& profile);

// With a comment on top that says what it is and how to use it. ReadClusterProfile reads it back.
std::string PrintClusterProfile(const v1::ClusterProfile& profile);

// 16 hexadecimal digits, equal for models of equal layers and inputs.
std::string ModelKey(const v1::Model& model);

}  // namespace cadre
