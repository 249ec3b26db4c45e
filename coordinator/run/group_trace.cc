// The reply must fit into one message, so every rank has an equal share of its bytes. A rank may
// send as many events as fit into its share; events that exceed the share are counted as dropped.
#include "coordinator/run/group_trace.h"

#include <algorithm>

namespace cadre {
namespace {

// Upper bound of the size of an event written by worker/train/step_tracer.h.
constexpr size_t kEventBytes = 160;
// Tag and length of an event inside RankTrace, and of a RankTrace inside the reply.
constexpr size_t kFrameBytes = 6;

}  // namespace

uint32_t GroupTrace::max_events() const {
  const size_t share = options_.max_bytes / options_.ranks;
  return static_cast<uint32_t>(std::clamp<size_t>(share / kEventBytes, 1, kMaxTraceEvents));
}

void GroupTrace::Take(const v1::Traced& traced, const std::string& worker,
                      const std::string& host) {
  const uint32_t rank = traced.place().rank();
  // The first answer is kept: a rank that connects again may send its events twice.
  if (answered(rank)) return;
  v1::RankTrace& trace = ranks_[rank];
  trace.set_rank(rank);
  trace.set_worker(worker);
  trace.set_host(host);
  const size_t share = options_.max_bytes / options_.ranks;
  size_t bytes = 0;
  for (const v1::TraceEvent& event : traced.events()) {
    bytes += event.ByteSizeLong() + kFrameBytes;
    if (bytes > share) break;
    *trace.add_events() = event;
  }
  const auto left_out = static_cast<uint64_t>(traced.events_size() - trace.events_size());
  trace.set_dropped(traced.dropped() + left_out);
}

v1::TraceReply GroupTrace::Reply() const {
  v1::TraceReply reply;
  for (const auto& [rank, trace] : ranks_) *reply.add_ranks() = trace;
  return reply;
}

}  // namespace cadre
