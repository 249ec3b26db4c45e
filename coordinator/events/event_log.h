// The newest events of the cluster, in the store and in memory.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/events/outbox.h"
#include "proto/cadre/v1/history.pb.h"

namespace cadre {

class EventLog {
 public:
  explicit EventLog(size_t keep) : keep_(keep) {}

  // Loads a record. Requires: called in the order of keys, before Add. Errors: DataLoss.
  absl::Status Load(const std::string& key, const std::string& bytes);

  // Adds the event with the next number and the time, writes it, and erases the oldest one if there
  // are too many.
  void Add(v1::ClusterEvent event, absl::Time now, Outbox& out);

  v1::EventsReply Read(const v1::EventsRequest& request) const;
  uint64_t newest() const { return events_.empty() ? 0 : events_.back().number(); }

 private:
  const size_t keep_;
  // By number.
  std::deque<v1::ClusterEvent> events_;
};

}  // namespace cadre
