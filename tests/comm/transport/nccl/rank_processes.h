// Ranks as processes on the first GPU of this host: a test program starts itself once per rank.
// Each rank appears to NCCL as a separate host, because NCCL rejects two ranks of a host on one
// GPU.
//
// main() first passes its arguments to ParseRankArguments. The ranks exchange addresses through the
// test.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/transport.h"

namespace cadre {

// Maximum duration of a rank.
constexpr absl::Duration kRankLimit = absl::Minutes(4);

// For the test process.
// Errors: FailedPrecondition if ranks cannot run on this host.
absl::Status CheckRankSupport();
// Runs `ranks` processes with `task`. Returns their wait statuses (waitpid).
std::vector<int> RunRankProcesses(const std::string& task, int ranks);

// For the process of a rank.
struct RankTask {
  std::string task;
  int rank = 0;
};
// Returns nullopt if the program was not started as a rank.
std::optional<RankTask> ParseRankArguments(int argc, char** argv);
// The host transport between the ranks.
absl::StatusOr<std::unique_ptr<Transport>> ConnectRankProcess(int rank);

}  // namespace cadre
