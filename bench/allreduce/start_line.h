// Where the ranks of a crew wait for one another before the clock starts, whatever they measure:
// counters in memory that processes share, so that no contestant's own barrier is a part of it.
//
// Thread-safe and process-safe; made before the processes fork.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre::bench {

class StartLine {
 public:
  // Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<StartLine>> Make(int ranks);
  ~StartLine();
  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;

  // Returns when all ranks have called it. Errors: DeadlineExceeded, some rank never came.
  absl::Status Wait(absl::Duration timeout);

 private:
  struct Counters {
    std::atomic<uint32_t> waiting;
    std::atomic<uint32_t> starts;
  };

  StartLine(Counters* counters, int ranks) : counters_(counters), ranks_(ranks) {}

  Counters* const counters_;
  const int ranks_;
};

}  // namespace cadre::bench
