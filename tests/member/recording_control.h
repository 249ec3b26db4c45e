// A fake coordinator for tests of a rank: records the rank's messages, and answers with prepared
// messages. Also makes the messages that these tests share.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "member/group_control.h"
#include "plan/search/planner.h"

namespace cadre {

class RecordingControl : public GroupControl {
 public:
  v1::Start start;
  // Decisions, in order. The group is released after the last one.
  std::deque<v1::Decision> decisions;
  // Results of connected(), in order; then true.
  mutable std::deque<bool> connections;
  // A request that is returned once, after `steps_before_trace` calls.
  std::optional<v1::TraceSteps> trace_request;
  int steps_before_trace = 0;
  // Number of times that nudged() returns false.
  mutable int steps_before_nudge = 0;
  // Result of leaves_within().
  std::optional<absl::Duration> leaving;

  // Received messages.
  v1::Prepared prepared;
  std::vector<v1::Contributed> contributed;
  std::vector<v1::Adopted> adopted;
  std::vector<v1::Evaluated> evaluated;
  std::vector<v1::Progress> progress;
  std::vector<v1::Measured> measured;
  std::vector<v1::Traced> traced;
  std::vector<v1::Checkpointed> checkpointed;

  absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared& message) override {
    prepared = message;
    return start;
  }
  void Send(const TrainingReport& report) override {
    std::visit([this](const auto& message) { Record(message); }, report);
  }
  absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration) override {
    if (decisions.empty()) return absl::CancelledError("released");
    std::optional<v1::Decision> decision = std::move(decisions.front());
    decisions.pop_front();
    return decision;
  }
  bool nudged(uint32_t) const override {
    if (steps_before_nudge == 0) return true;
    --steps_before_nudge;
    return false;
  }
  std::optional<absl::Duration> leaves_within() const override { return leaving; }
  std::optional<v1::TraceSteps> TakeTraceRequest() override {
    if (steps_before_trace-- > 0) return std::nullopt;
    return std::exchange(trace_request, std::nullopt);
  }
  bool connected() const override {
    if (connections.empty()) return true;
    const bool connected = connections.front();
    connections.pop_front();
    return connected;
  }
  ShardLocation LocationOf(uint32_t) const override { return {}; }

 private:
  void Record(const v1::Prepared& message) { prepared = message; }
  void Record(const v1::Progress& message) { progress.push_back(message); }
  void Record(const v1::Measured& message) { measured.push_back(message); }
  void Record(const v1::Contributed& message) { contributed.push_back(message); }
  void Record(const v1::Adopted& message) { adopted.push_back(message); }
  void Record(const v1::Evaluated& message) { evaluated.push_back(message); }
  void Record(const v1::Traced& message) { traced.push_back(message); }
  void Record(const v1::Restaged&) {}
  void Record(const v1::Checkpointed& message) { checkpointed.push_back(message); }
};

// Assigns the run to a group of `ranks`, from the step of its checkpoint.
inline v1::Assignment AssignmentOf(const v1::RunSpec& spec, int ranks = 1) {
  v1::Assignment assignment;
  assignment.mutable_place()->set_run("run-1");
  assignment.mutable_place()->set_generation(3);
  assignment.set_lineage("run-1.a");
  *assignment.mutable_spec() = spec;
  *assignment.mutable_plan() = *MakePlan(spec, ranks);
  return assignment;
}

// The run with a checkpoint every six steps and without averaging.
inline v1::RunSpec WithCheckpoints(v1::RunSpec spec, const std::string& directory) {
  spec.clear_averaging();
  spec.mutable_checkpoint()->set_directory(directory);
  spec.mutable_checkpoint()->set_every_steps(6);
  return spec;
}

inline v1::RunSpec ResumingFrom(v1::RunSpec spec, const std::string& checkpoint, uint32_t step) {
  spec.mutable_checkpoint()->set_from(checkpoint);
  spec.mutable_checkpoint()->set_from_step(step);
  return spec;
}

// The start of a run of one group and 20 steps, with the first boundary at `next_step`.
inline v1::Start StartOf(uint32_t next_step) {
  v1::Start start;
  start.set_next_step(next_step);
  start.set_total_steps(20);
  start.mutable_division()->set_groups(1);
  return start;
}

// A decision to train to `next_step`; 0: to the end of the run.
inline v1::Decision DecisionTo(uint32_t next_step) {
  v1::Decision decision;
  decision.set_next_step(next_step);
  return decision;
}

// The last decision of a run, which assigns `samples` test samples.
inline v1::Decision EndOfRun(uint64_t samples) {
  v1::Decision decision;
  decision.set_evaluate_end(samples);
  return decision;
}

inline v1::TraceSteps TraceOf(uint32_t steps) {
  v1::TraceSteps request;
  request.set_request(7);
  request.set_steps(steps);
  request.set_max_events(20000);
  return request;
}

}  // namespace cadre
