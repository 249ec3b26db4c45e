// The interface of the coordinator's state machine to a planner: plans for a group of known
// workers, and predicted step times.
//
// The interface lets tests drive the machine without a planner. Implementations are pure and
// thread-safe: equal queries have equal answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Resources of one rank, as reported by its worker.
struct RankResources {
  std::string host;
  // Name of its compute device; part of the key of layer times.
  std::string device;
  // This rank's share of the cores and memory of its host; 0: unknown.
  double cores = 0;
  int64_t memory_bytes = 0;
};

struct PlanQuery {
  // The run's; cluster.device is the kind of the ranks' devices, which is the same for all of them.
  v1::RunSpec spec;
  // The ranks in order; ranks of one host are adjacent.
  std::vector<RankResources> ranks;
  // The last measured link between these hosts, and within one host (`inside`); absent if never
  // measured.
  std::optional<v1::LinkProfile> link;
  std::optional<v1::LinkProfile> inside;
  // Layer times of the model for each kind of device among the ranks. Empty if one kind was never
  // measured.
  std::vector<v1::LayerTimesRecord> times;
};

struct GroupPlan {
  v1::Plan plan;
  // Absent if too little was measured.
  std::optional<v1::StepTimes> predicted;
};

class Planning {
 public:
  virtual ~Planning() = default;

  // Plans for the group, with the fastest prediction first; never empty. If link or times are
  // unknown, or if the run places layers by pins, only the plan of the planner's rules, without a
  // prediction. Errors: InvalidArgument if this number of ranks cannot train the run;
  // ResourceExhausted, naming a layer, if a rank lacks the memory for the layers placed on it.
  virtual absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery& query) const = 0;

  // Errors: FailedPrecondition if link or times are unknown; InvalidArgument for a plan that does
  // not fit the run.
  virtual absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& query,
                                                const v1::Plan& plan) const = 0;

  // A key that is equal for models with equal layers; together with the device, the key of layer
  // times.
  virtual std::string KeyOf(const v1::Model& model) const = 0;
  // Names of the model's layers, as used in measurements. Empty for an invalid model.
  virtual std::vector<std::string> LayersOf(const v1::Model& model) const = 0;
};

}  // namespace cadre
