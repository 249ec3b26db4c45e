// One rank of a crew: owns its networks, contestants and buffers, and does what the referee says,
// order by order. A player is a process of its own, or a thread among others.
//
// Orders and answers (JSON):
//   {do: "listen"}                                -> {ok, addresses: {network: address}}
//   {do: "connect", peers: {network: [address]}}  -> {ok}
//   {do: "make", contestant}                      -> {ok}
//   {do: "prepare", contestant, bytes, in_place}  -> {ok, algorithm, explanation}
//   {do: "check", contestant}                     -> {ok, errors, seconds}   the first run
//   {do: "time", contestant, iterations}          -> {ok, seconds}           of all iterations
//   {do: "finish", contestant}                    -> {ok}
//   {do: "quit"}                                  -> no answer
// An answer that is not ok has `error`. Between prepare and finish of one contestant, others of the
// same size may be prepared, too.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/allreduce/contestant.h"
#include "bench/allreduce/message_line.h"
#include "bench/allreduce/start_line.h"
#include "nlohmann/json.hpp"

namespace cadre::bench {

// "shm", "ring".
struct ContestantName {
  std::string network;
  std::string algorithm;

  friend bool operator==(const ContestantName&, const ContestantName&) = default;
};

class Player {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    DType dtype = DType::kFloat32;
    // Largest task.
    int64_t max_bytes = 0;
    // Whether some task is out of place.
    bool out_of_place = false;
    absl::Duration timeout;
  };

  // `contestants`: by the numbers that orders call them. `start_line` is borrowed.
  Player(const Options& options, std::map<std::string, std::unique_ptr<Network>> networks,
         std::vector<ContestantName> contestants, StartLine& start_line);

  // Until "quit" or the end of the line. An error was told to the referee.
  void Serve(const MessageLine& line);

 private:
  using Json = nlohmann::json;

  absl::StatusOr<Json> Obey(const Json& order);
  absl::StatusOr<Json> Listen();
  absl::StatusOr<Json> Connect(const Json& order);
  absl::StatusOr<Json> Make(size_t contestant);
  absl::StatusOr<Json> Prepare(size_t contestant, int64_t bytes, bool in_place);
  absl::StatusOr<Json> Check(size_t contestant);
  absl::StatusOr<Json> Time(size_t contestant, int iterations);
  absl::StatusOr<Json> Finish(size_t contestant);

  Task TaskOf(int64_t bytes, bool in_place);

  const Options options_;
  // Networks before contestants: these use those.
  const std::map<std::string, std::unique_ptr<Network>> networks_;
  const std::vector<ContestantName> names_;
  StartLine& start_line_;
  std::vector<std::unique_ptr<Contestant>> contestants_;
  std::vector<std::byte> data_;
  std::vector<std::byte> input_;
  Task task_;
};

}  // namespace cadre::bench
