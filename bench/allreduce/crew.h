// The ranks that measure together, as the referee's process sees them: child processes with one
// rank each, or one child whose threads are the ranks.
//
// The referee's process makes no thread, so that it may fork. Children end with it: orderly by
// Quit, at once by the destructor or when the referee dies.
//
// Thread-compatible.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/allreduce/message_line.h"
#include "bench/allreduce/player.h"
#include "nlohmann/json.hpp"

namespace cadre::bench {

struct CrewOptions {
  int ranks = 2;
  DType dtype = DType::kFloat32;
  int64_t max_bytes = 0;
  bool out_of_place = false;
  // Longest silence of anything.
  absl::Duration timeout = absl::Seconds(60);
  int tcp_connections = 0;
  // Empty, for Gloo's addresses.
  std::string gloo_folder;
};

class Crew {
 public:
  // `contestants` are all of network "threads" (then ranks are threads) or none is.
  // Requires: the process has one thread. Errors: ResourceExhausted; what connecting returns.
  static absl::StatusOr<std::unique_ptr<Crew>> Start(const CrewOptions& options,
                                                     std::vector<ContestantName> contestants);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Gives all ranks the same order and collects their answers, by rank.
  // Errors: the first rank's that has one.
  absl::StatusOr<std::vector<nlohmann::json>> Order(const nlohmann::json& order);

  // Ends all ranks and waits for them.
  void Quit();

 private:
  Crew() = default;

  absl::Status Connect();

  std::unique_ptr<StartLine> start_line_;
  std::vector<MessageLine> lines_;
  std::vector<pid_t> children_;
};

}  // namespace cadre::bench
