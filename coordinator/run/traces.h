// Traces of the next steps of a run's groups.
//
// A trace is a user's request that waits until every rank has answered. It is not durable: when the
// coordinator restarts, the user's call fails with its stream. If the generation ends, the request
// is answered with an error. A cancelled request frees the group for the next one.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/events.h"
#include "coordinator/run/group_trace.h"
#include "coordinator/run/slot.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class RunView;

class Traces {
 public:
  // Borrowed. `max_bytes`: limit of a reply.
  Traces(const RunView& run, Cluster& cluster, size_t max_bytes)
      : run_(run), cluster_(cluster), max_bytes_(max_bytes) {}

  // Errors: InvalidArgument, NotFound, FailedPrecondition, ResourceExhausted.
  absl::Status Start(const TraceGroup& request, uint64_t number);
  void Cancel(RequestId request);
  void OnTraced(const Member& member, const v1::Traced& traced);
  // Sends the request to a rank that has not answered, if its group is traced.
  void SendSteps(const Slot& slot, uint32_t rank);
  // The generation has ended: ends its trace, if any, with an error.
  void Abort(const Slot& slot, absl::string_view reason);

 private:
  const RunView& run_;
  Cluster& cluster_;
  const size_t max_bytes_;
  // By group.
  std::map<uint32_t, GroupTrace> traces_;
};

}  // namespace cadre
