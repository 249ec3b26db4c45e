// Drives one Machine (the state machine of the coordinator) with a store in memory, in virtual
// time, for its users. Part of FakeCluster.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/machine.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre::testing {

class MachineDriver {
 public:
  // Changes the machine's options before the machine is created.
  using Adjust = std::function<void(Machine::Options&)>;
  explicit MachineDriver(const Adjust& adjust);

  // ---- Users
  // Returns the id of the new run; the status of a refusal is in last_status.
  std::string Submit(const v1::RunSpec& spec, bool join_existing = false, bool join_ended = false);
  void StopRun(const std::string& run);
  void ResumeRun(const std::string& run);
  // The status of the answer is in last_status.
  void RollBackRun(const std::string& run, uint32_t version,
                   const std::vector<uint32_t>& leave_out = {});
  // The status of the answer is in last_status.
  void DeleteRun(const std::string& run);
  // Returns the runs found; the status is in last_status.
  v1::AdoptReply Adopt(const std::string& run = "");
  // Returns the ids of the workers that matched; the status is in last_status.
  std::vector<std::string> Cordon(const std::string& member, bool undo = false, bool drain = false,
                                  double drain_seconds = 0);
  // The status of the answer is in last_status.
  void Scale(const std::string& run, uint32_t groups);
  void AnswerSearches();
  // Requests a trace; its result is in `traces`, by the returned request.
  RequestId TraceGroup(const std::string& run, uint32_t group, uint32_t steps = 3);
  void CancelTrace(RequestId request);

  // ---- Streams
  ConnectionId Open();
  std::vector<v1::CoordinatorMessage> SentTo(ConnectionId connection) const;
  bool IsOpen(ConnectionId connection) const { return ended_.count(connection) == 0; }
  void Do(const Event& event);

  // ---- The process
  Machine& machine() { return *machine_; }
  absl::Time now() const { return now_; }
  // Crashes it (data that is not durable is lost, every stream breaks) and starts it again.
  virtual void RestartCoordinator() = 0;
  // The same with an empty store, or with an older copy of the store.
  void LoseStore() { RollBackStore({}); }
  void RollBackStore(const std::map<std::string, std::string>& copy);
  // Crashes it after its n-th transaction from now is durable, before its messages are sent.
  void CrashAfterTransaction(int n) { crash_after_ = n; }
  int transactions() const { return transactions_; }

  // ---- Its state
  v1::RunStatus RunStatus(const std::string& run);
  // Whether the run has ended, or its record was removed since.
  bool Ended(const std::string& run);
  v1::GroupStatus Group(const std::string& run, uint32_t group);
  v1::StatusReply Status() { return machine_->Status(now_); }
  v1::HistoryReply History(const std::string& run) {
    v1::HistoryRequest request;
    request.set_run(run);
    return machine_->History(request).value();
  }
  v1::EventsReply Events() { return machine_->Events({}); }
  uint64_t Counter(const std::string& name);
  std::optional<v1::CommitRecord> Commit(const std::string& run, uint32_t round) const;
  // The record of the run in the store.
  v1::RunRecord StoredRun(const std::string& run) const;
  const std::map<std::string, std::string>& store() const { return store_; }

  // Whether searches of plans wait for AnswerSearches.
  bool hold_searches = false;
  std::map<RequestId, Replied> traces;
  absl::Status last_status;
  std::string last_run;
  bool last_run_ended = false;
  std::vector<std::string> last_members;
  std::vector<std::string> last_sole_models;
  v1::AdoptReply last_adopted;

 protected:
  ~MachineDriver() = default;

  // Delivers all messages, and lets the members act.
  virtual void Deliver() = 0;
  void StartMachine();
  bool crashed() const { return crashed_; }
  // The next message to a member.
  std::optional<cadre::Send> TakeSent();
  absl::Duration heartbeat() const { return options_.heartbeat; }
  void AdvanceTo(absl::Time now) { now_ = std::max(now_, now); }

 private:
  void Perform(const std::vector<Action>& actions);
  void CheckTransaction(const std::string& key, const std::string& value);

  Machine::Options options_;
  std::vector<PlanningWork> searches_;
  std::unique_ptr<Machine> machine_;
  std::map<std::string, std::string> store_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  ConnectionId last_connection_ = 0;
  RequestId last_request_ = 0;
  std::set<RequestId> trace_requests_;
  int transactions_ = 0;
  int crash_after_ = -1;
  bool crashed_ = false;
  std::deque<cadre::Send> in_flight_;
  std::map<ConnectionId, std::vector<v1::CoordinatorMessage>> raw_received_;
  std::set<ConnectionId> ended_;
  uint32_t highest_generation_ = 0;
};

}  // namespace cadre::testing
