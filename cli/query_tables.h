// The coordinator's replies as tables and JSON (see Print in cli/render.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "cli/render.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// `cadre status`: everything, except the details of groups.
struct Overview {
  v1::StatusReply status;
  // Address of the coordinator.
  std::string coordinator;
};
Json ToJson(const Overview& overview);
std::string ToText(const Overview& overview);

// `cadre describe`: the groups of one run in detail.
struct RunDetails {
  v1::StatusReply status;
};
Json ToJson(const RunDetails& details);
std::string ToText(const RunDetails& details);

// `cadre members`: workers and aggregators.
struct MemberList {
  v1::StatusReply status;
};
Json ToJson(const MemberList& members);
std::string ToText(const MemberList& members);

// `cadre runs`.
struct RunList {
  v1::ListReply reply;
};
Json ToJson(const RunList& runs);
std::string ToText(const RunList& runs);

// Whether a worker of another group computes on a host and device of this group. The prediction of
// a step does not account for that.
bool SharesDevices(const v1::GroupStatus& group, const v1::StatusReply& status);

// The texts below are "" if nothing is known yet.

// "0.42: the groups agree: ...".
std::string DiscrepancyText(const v1::RunStatus& run);
// "data=1,model=2".
std::string MeshText(const v1::GroupStatus& group);
// "10.0 us, 1.25 GB/s, tcp".
std::string LinkText(const v1::GroupStatus& group);
// "4 buckets: ring 2, halving-doubling 2".
std::string BucketsText(const v1::GroupStatus& group);
// "-12%": the step was predicted to be 12% shorter than it is.
std::string ErrorText(const v1::GroupStatus& group);
// "41 ms, 6% waiting".
std::string StepText(const v1::GroupStatus& group);

}  // namespace cadre
