// The loads on the coordinator, and what their two drivers share.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/events/planning.h"
#include "coordinator/machine/machine.h"
#include "nlohmann/json.hpp"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct LoadOptions {
  // Workers; kLoadAggregators aggregators are added.
  int workers = 0;
  // Share of the workers that hold a rank of a group; the others are idle.
  double placed = 0.5;
  int ranks_per_group = 16;
  int groups_per_run = 16;
  // Measured time, and the limit for the time in which the members join.
  double seconds = 20;
  double setup_seconds = 120;

  // The remaining ones are MeasureStreams's. Seconds for which a group trains between two rounds,
  // and between two requests of the status.
  double round_seconds = 5;
  double status_interval = 0.1;
  absl::Duration lease = absl::Seconds(10);
  // Folder of cadre-coordinator; empty: that of this program.
  std::string programs;
  // MeasureStart's: a model of the zoo.
  std::string model = "resnet50";

  int groups() const { return static_cast<int>(placed * workers) / ranks_per_group; }
  int runs() const { return (groups() + groups_per_run - 1) / groups_per_run; }
  // Members that join one after the other are on different hosts.
  std::string HostOf(int number) const;
  // The runs, which average after every ten steps and do not end during a measurement. Errors:
  // those of validation.
  absl::StatusOr<std::vector<v1::RunSpec>> Specs() const;
};

inline constexpr int kLoadAggregators = 4;

// As the options of cadre-coordinator, but runs do not end after many failures without a commit.
// `planning` is borrowed.
Machine::Options LoadMachineOptions(const Planning& planning);

// Drives the coordinator's state machine, in this thread and under virtual time, and times every
// event. Returns the fields of the output line. Errors: Internal if members and state machine
// disagree, for example on the number of heartbeats.
absl::StatusOr<nlohmann::ordered_json> MeasureMachine(const LoadOptions& options);

// Drives a cadre-coordinator in a child process, with a store on disk, over real Join streams, each
// with a connection of its own. Returns the fields of the output line; `setup_seconds` is the limit
// until all groups train. Errors: ResourceExhausted if the limit of open files is too low;
// NotFound without the program; DeadlineExceeded if the setup takes too long; Internal if members
// and coordinator disagree, for example on the number of heartbeats.
absl::StatusOr<nlohmann::ordered_json> MeasureStreams(const LoadOptions& options);

// Drives the coordinator's event loop in this process, with a store on disk: all workers, in one
// run, join, measure and restart at the same time. Returns the fields of the output line. Errors:
// DeadlineExceeded if a phase takes longer than `setup_seconds`.
absl::StatusOr<nlohmann::ordered_json> MeasureStart(const LoadOptions& options);

// Seconds on a clock that never jumps.
double MonotonicSeconds();

// The heartbeats of the members in a page of the status: the sum of their counters.
uint64_t HandledHeartbeats(const v1::StatusReply& page);

// Durations of many events of one kind, and their percentiles.
class Latencies {
 public:
  void Add(double seconds) { seconds_.push_back(static_cast<float>(seconds)); }
  void Add(const Latencies& other) {
    seconds_.insert(seconds_.end(), other.seconds_.begin(), other.seconds_.end());
  }
  // Count, median, 99th percentile and maximum, in milliseconds.
  nlohmann::ordered_json ToJson();

 private:
  // The smallest value that at least the share `p` of all values does not exceed; 0 without values.
  double Percentile(double p);

  std::vector<float> seconds_;
};

}  // namespace cadre
