// Traffic of the groups of a run with the aggregators, which is counted in its record with the next
// commit. A value; thread-compatible.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/records.pb.h"

namespace cadre {

struct RunTraffic {
  uint64_t payload = 0;
  // Whole messages.
  uint64_t up = 0;
  uint64_t down = 0;
  // Seconds in which groups waited for it, and in which they sent and received it.
  double exposed_seconds = 0;
  double transfer_seconds = 0;

  RunTraffic& operator+=(const RunTraffic& other) {
    payload += other.payload;
    up += other.up;
    down += other.down;
    exposed_seconds += other.exposed_seconds;
    transfer_seconds += other.transfer_seconds;
    return *this;
  }

  void AddTo(v1::RunRecord& run) const {
    run.set_payload_bytes(run.payload_bytes() + payload);
    run.set_message_bytes(run.message_bytes() + up + down);
    run.set_bytes_up(run.bytes_up() + up);
    run.set_exchange_seconds(run.exchange_seconds() + exposed_seconds);
    run.set_transfer_seconds(run.transfer_seconds() + transfer_seconds);
  }
};

}  // namespace cadre
