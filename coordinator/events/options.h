// What the coordinator's state machine is configured with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/events/planning.h"
#include "coordinator/events/retention.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct CoordinatorOptions {
  // The plan of a group of `ranks` workers. Required.
  std::function<absl::StatusOr<v1::Plan>(const v1::RunSpec& spec, int ranks)> plan;
  // Chooses plans for groups of known workers and predicts step times. Borrowed; must outlive the
  // coordinator. Null: only `plan` is used, without predictions.
  const Planning* planning = nullptr;
  // Checks that a plan is legal for the run. Empty: only mesh and layouts are compared.
  std::function<absl::Status(const v1::RunSpec& spec, const v1::Plan& plan)> check_plan;
  // Checks a submitted run; errors name the field. Empty: every run is accepted.
  std::function<absl::Status(const v1::RunSpec& spec)> validate;
  // Number of parameter elements, for the status. Empty: unknown.
  std::function<uint64_t(const v1::RunSpec& spec)> parameter_count;
  // Members must have a compatible one (base/protocol.h).
  uint32_t protocol = 0;
  absl::Duration lease = absl::Seconds(10);
  absl::Duration heartbeat = absl::Seconds(2);
  // How long a round waits for a group of which a rank has lost its stream.
  absl::Duration return_grace = absl::Seconds(2);
  // How long the groups of a run wait for an aggregator that is away before their generations end.
  absl::Duration aggregator_patience = absl::Hours(1);
  // Maximum number of live runs.
  int max_live_runs = 256;
  // Which runs that have ended are deleted without an order, with their files on the aggregators.
  RetentionPolicy retention;
  // Number of the newest commit records of each run that are kept. Replay needs two, and the one
  // that is being applied, which is kept in addition; the others are for people.
  uint32_t keep_commits = 16;
  // Number of complete entries of a run's history, and of events of the cluster, that are kept
  // (coordinator/run/history.h).
  uint32_t keep_history = 512;
  uint32_t keep_events = 1024;
  // Size limit of the answer to a trace; below the limit of one message.
  size_t max_trace_bytes = 7 << 20;
  // 16 random bytes, from which a new store derives the keys of all generations.
  std::string key_seed = std::string(16, '\0');
  // Program version, for the status and refusals.
  std::string version;
  // Whether the coordinator serves without TLS, for the status.
  bool insecure = false;
};

}  // namespace cadre
