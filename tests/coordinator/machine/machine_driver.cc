#include "tests/coordinator/machine/machine_driver.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/match.h"
#include "base/protocol.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre::testing {
namespace {

absl::StatusOr<v1::Plan> FakePlan(const v1::RunSpec&, int ranks) {
  v1::Plan plan;
  v1::MeshAxis& axis = *plan.add_mesh();
  axis.set_name("data");
  axis.set_size(static_cast<uint32_t>(ranks));
  return plan;
}

}  // namespace

MachineDriver::MachineDriver(const Adjust& adjust) {
  options_.plan = FakePlan;
  options_.parameter_count = [](const v1::RunSpec&) { return uint64_t{1000}; };
  options_.protocol = kProtocol;
  options_.version = "test";
  if (adjust) adjust(options_);
  StartMachine();
}

void MachineDriver::StartMachine() {
  in_flight_.clear();
  searches_.clear();
  crashed_ = false;
  machine_ = std::make_unique<Machine>(options_);
  auto actions = machine_->Restore(store_, now_, static_cast<uint64_t>(absl::ToUnixMillis(now_)));
  ASSERT_TRUE(actions.ok()) << actions.status();
  Perform(*actions);
}

void MachineDriver::CheckTransaction(const std::string& key, const std::string& value) {
  if (key == kMetaKey) {
    v1::MetaRecord meta;
    ASSERT_TRUE(meta.ParseFromString(value));
    EXPECT_GE(meta.generation(), highest_generation_) << "generations must not be reused";
    highest_generation_ = meta.generation();
  }
  if (!absl::StartsWith(key, kCommitPrefix)) return;
  v1::CommitRecord commit;
  ASSERT_TRUE(commit.ParseFromString(value));
  auto it = store_.find(key);
  if (it == store_.end()) return;
  v1::CommitRecord before;
  ASSERT_TRUE(before.ParseFromString(it->second));
  EXPECT_FALSE(before.committed()) << "a committed record must not change: " << key;
  ASSERT_GE(commit.attempt(), before.attempt()) << key;
  if (commit.attempt() > before.attempt()) return;
  ASSERT_EQ(before.participants_size(), commit.participants_size()) << key;
  for (int i = 0; i < before.participants_size(); ++i) {
    EXPECT_EQ(before.participants(i).SerializeAsString(),
              commit.participants(i).SerializeAsString());
  }
}

void MachineDriver::Perform(const std::vector<Action>& actions) {
  bool kept = false;
  for (const Action& action : actions) {
    const auto* op = std::get_if<Store::Op>(&action);
    if (op == nullptr) continue;
    kept = true;
    if (op->kind == Store::Op::Kind::kPut) CheckTransaction(op->key, op->value);
    ApplyTo(store_, *op);
  }
  if (kept) {
    ++transactions_;
    if (crash_after_ > 0 && --crash_after_ == 0) {
      crash_after_ = -1;
      crashed_ = true;
      return;
    }
  }
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<cadre::Send>(&action)) {
      raw_received_[send->connection].push_back(send->message);
      in_flight_.push_back(*send);
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      ended_.insert(disconnect->connection);
    } else if (const auto* replied = std::get_if<Replied>(&action)) {
      last_status = replied->status;
      last_run = replied->run;
      last_run_ended = replied->ended;
      last_members = replied->members;
      last_sole_models = replied->sole_models;
      last_adopted = replied->adopted;
      if (!trace_requests_.contains(replied->request)) continue;
      EXPECT_EQ(traces.count(replied->request), 0u) << "a trace must be answered once";
      traces[replied->request] = *replied;
    } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
      searches_.emplace_back(*search);
    } else if (const auto* predict = std::get_if<PredictStep>(&action)) {
      searches_.emplace_back(*predict);
    }
  }
  if (hold_searches || searches_.empty()) return;
  AnswerSearches();
}

void MachineDriver::AnswerSearches() {
  for (const PlanningWork& work : std::exchange(searches_, {})) {
    Do(Answer(*options_.planning, work));
  }
  if (hold_searches) Deliver();
}

void MachineDriver::Do(const Event& event) {
  if (crashed_) return;
  Perform(HandleOne(*machine_, event, now_));
}

std::string MachineDriver::Submit(const v1::RunSpec& spec, bool join_existing, bool join_ended) {
  last_run.clear();
  last_status = CheckSpec(options_, spec);
  if (!last_status.ok()) return "";
  Do(SubmitRun{.request = ++last_request_,
               .spec = spec,
               .lineage_seed = 7,
               .join_existing = join_existing,
               .join_ended = join_ended});
  const std::string run = last_run;
  Deliver();
  return run;
}

std::vector<std::string> MachineDriver::Cordon(const std::string& member, bool undo, bool drain,
                                               double drain_seconds) {
  last_members.clear();
  Do(CordonMembers{.request = ++last_request_,
                   .member = member,
                   .undo = undo,
                   .drain = drain,
                   .drain_seconds = drain_seconds});
  Deliver();
  return last_members;
}

void MachineDriver::Scale(const std::string& run, uint32_t groups) {
  Do(ScaleRun{.request = ++last_request_, .run = run, .groups = groups});
  Deliver();
}

void MachineDriver::StopRun(const std::string& run) {
  Do(cadre::StopRun{.request = ++last_request_, .run = run, .reason = "enough"});
  Deliver();
}

void MachineDriver::DeleteRun(const std::string& run) {
  Do(cadre::DeleteRun{.request = ++last_request_, .run = run});
  Deliver();
}

void MachineDriver::ResumeRun(const std::string& run) {
  Do(cadre::ResumeRun{.request = ++last_request_, .run = run});
  Deliver();
}

void MachineDriver::RollBackRun(const std::string& run, uint32_t version,
                                const std::vector<uint32_t>& leave_out) {
  Do(cadre::RollBackRun{
      .request = ++last_request_, .run = run, .version = version, .leave_out = leave_out});
  Deliver();
}

v1::AdoptReply MachineDriver::Adopt(const std::string& run) {
  last_adopted.Clear();
  Do(AdoptRuns{.request = ++last_request_, .run = run});
  Deliver();
  return last_adopted;
}

RequestId MachineDriver::TraceGroup(const std::string& run, uint32_t group, uint32_t steps) {
  const RequestId request = ++last_request_;
  trace_requests_.insert(request);
  Do(cadre::TraceGroup{.request = request, .run = run, .group = group, .steps = steps});
  Deliver();
  return request;
}

void MachineDriver::CancelTrace(RequestId request) {
  Do(cadre::CancelTrace{request});
  Deliver();
}

ConnectionId MachineDriver::Open() {
  Do(StreamOpened{++last_connection_});
  return last_connection_;
}

std::vector<v1::CoordinatorMessage> MachineDriver::SentTo(ConnectionId connection) const {
  auto it = raw_received_.find(connection);
  return it == raw_received_.end() ? std::vector<v1::CoordinatorMessage>() : it->second;
}

void MachineDriver::RollBackStore(const std::map<std::string, std::string>& copy) {
  store_ = copy;
  highest_generation_ = 0;
  RestartCoordinator();
}

v1::RunStatus MachineDriver::RunStatus(const std::string& run) {
  if (machine_->Revisions(run).empty()) {
    ADD_FAILURE() << "no such run: " << run;
    return v1::RunStatus();
  }
  return machine_->Update(run, now_).run();
}

bool MachineDriver::Ended(const std::string& run) {
  return machine_->Revisions(run).empty() || !IsLive(RunStatus(run).state());
}

v1::GroupStatus MachineDriver::Group(const std::string& run, uint32_t group) {
  const v1::StatusReply reply = machine_->Status(now_, run);
  for (const v1::GroupStatus& status : reply.groups()) {
    if (status.group() == group) return status;
  }
  return v1::GroupStatus();
}

uint64_t MachineDriver::Counter(const std::string& name) {
  const v1::StatusReply reply = Status();
  auto it = reply.counters().find(name);
  return it == reply.counters().end() ? 0 : it->second;
}

std::optional<v1::CommitRecord> MachineDriver::Commit(const std::string& run,
                                                      uint32_t round) const {
  auto it = store_.find(CommitKey(run, round));
  if (it == store_.end()) return std::nullopt;
  v1::CommitRecord commit;
  EXPECT_TRUE(commit.ParseFromString(it->second));
  return commit;
}

v1::RunRecord MachineDriver::StoredRun(const std::string& run) const {
  v1::RunRecord record;
  const auto it = store_.find(RunKey(run));
  EXPECT_TRUE(it != store_.end() && record.ParseFromString(it->second)) << run;
  return record;
}

std::optional<cadre::Send> MachineDriver::TakeSent() {
  if (in_flight_.empty()) return std::nullopt;
  std::optional<cadre::Send> send = std::move(in_flight_.front());
  in_flight_.pop_front();
  return send;
}

}  // namespace cadre::testing
