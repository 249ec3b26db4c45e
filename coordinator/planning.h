// What the coordinator's machine asks of a planner: plans for a group whose workers are known, and
// what a plan takes there.
//
// An interface, so that the machine can be driven without any planner; implementations are pure
// and thread-safe: equal questions have equal answers.
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

// What one rank of a group has, as its worker told.
struct RankMachine {
  std::string host;
  // What it computes with; layer times are filed under it.
  std::string device;
  // This rank's share of its host's cores and bytes of memory; 0: not known.
  double cores = 0;
  int64_t memory_bytes = 0;
};

struct PlanningQuestion {
  const v1::RunSpec* spec = nullptr;
  // In the order of the ranks, those of one host side by side.
  std::vector<RankMachine> ranks;
  // Measured between such hosts, last; nothing: never. `inside` is that of one of the hosts alone.
  std::optional<v1::LinkProfile> link;
  std::optional<v1::LinkProfile> inside;
  // Of the run's model, for each kind of device among the ranks. Empty: there is a kind that was
  // never measured.
  std::vector<v1::LayerTimesRecord> times;
};

struct GroupPlan {
  v1::Plan plan;
  // Nothing: too little was measured to say.
  std::optional<v1::StepTimes> predicted;
};

class Planning {
 public:
  virtual ~Planning() = default;

  // Plans for the group, the one that is predicted to be fastest first. Where link or times are not
  // known that is one, by rules, without a prediction. Never empty.
  // Errors: InvalidArgument: so many ranks cannot train the run.
  virtual absl::StatusOr<std::vector<GroupPlan>> PlansFor(
      const PlanningQuestion& question) const = 0;

  // Errors: FailedPrecondition: link or times are not known; InvalidArgument for a plan that does
  // not fit the run.
  virtual absl::StatusOr<v1::StepTimes> Predict(const PlanningQuestion& question,
                                                const v1::Plan& plan) const = 0;

  // Equal for models of equal layers: what layer times are filed under, beside the device.
  virtual std::string KeyOf(const v1::Model& model) const = 0;
  // Names of its layers, as they are measured. Empty: it is no model.
  virtual std::vector<std::string> LayersOf(const v1::Model& model) const = 0;
};

}  // namespace cadre
