// Ranks as processes on this machine's first GPU: a test program starts itself once for each rank.
// NCCL takes each for a host of its own, for it allows no two ranks of a host on one GPU.
//
// main() gives its arguments to RankOfArguments first; ranks find one another through the test.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/transport/transport.h"

namespace cadre {

// Whatever a rank waits for comes within this time.
constexpr absl::Duration kRankLimit = absl::Minutes(4);

// --- the test ------------------------------------------------------------------------------------

// Why ranks cannot run here; empty: they can.
std::string WhyNoRanks();
// Starts `ranks` processes with `task`, and waits for them. How each ended, as waitpid says.
std::vector<int> RunRankProcesses(const std::string& task, int ranks);

// --- a rank --------------------------------------------------------------------------------------

struct RankTask {
  std::string task;
  int rank = 0;
};
// Nothing where the program was not started as a rank.
std::optional<RankTask> RankOfArguments(int argc, char** argv);
// The transport between the ranks' hosts.
absl::StatusOr<std::unique_ptr<Transport>> ConnectRankProcess(int rank);

}  // namespace cadre
