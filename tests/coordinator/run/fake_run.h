// A run as its parts see it, with a cluster in memory: tests set its record, slots, commits and
// shards, and look at what a part stores, sends and reports.
//
// Thread-compatible.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/history.h"
#include "coordinator/run/round.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stored_run.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre::testing {

class FakeRun final : public RunView {
 public:
  // The cluster is borrowed.
  FakeRun(const v1::RunRecord& record, Cluster& cluster)
      : RunView(stored, history, slots), stored(record, cluster), history(record.run(), 100) {}

  const Round& round() const override { return current; }
  const Commits& commits() const override { return made; }
  const Shards& shards() const override { return opened; }
  uint64_t Parameters() const override { return parameters; }
  bool behind() const override { return false; }

  StoredRun stored;
  History history;
  Slots slots;
  Round current{Round::Options()};
  Commits made;
  Shards opened{stored.record()};
  uint64_t parameters = 1000;
};

// One run, which the store has already.
class RunPartTest : public ::testing::Test {
 protected:
  // `record`: a RunRecord in text format.
  explicit RunPartTest(const std::string& record) : run_(Parse<v1::RunRecord>(record), cluster_) {
    cluster_.Begin(kStart);
    cluster_.Restore({}, 1);
    run_.stored.Save();
    TakeSent();
    NewEvents();
  }

  v1::RunRecord& record() { return run_.stored.record(); }
  v1::RunSpec& spec() { return *record().mutable_spec(); }
  // Adds a member that is connected; its id is its name.
  Member& AddMember(v1::Role role, const std::string& name, const std::string& host = "host") {
    v1::MemberRecord member;
    member.set_member_id(name);
    member.set_role(role);
    member.set_name(name);
    member.set_host(host);
    member.set_address(name + ":1");
    Member& added = cluster_.members().Add(member, kStart);
    cluster_.members().Attach(added, ++connections_, kStart);
    return added;
  }
  // Carries out what was stored since the last call. Returns the messages that were sent since.
  std::vector<v1::CoordinatorMessage> TakeSent() {
    std::vector<v1::CoordinatorMessage> sent;
    for (const Action& action : cluster_.Take()) {
      if (const auto* op = std::get_if<Store::Op>(&action)) ApplyTo(store_, *op);
      if (const auto* send = std::get_if<Send>(&action)) sent.push_back(send->message);
    }
    return sent;
  }
  // The texts of the events since the last call.
  std::vector<std::string> NewEvents() {
    v1::EventsRequest request;
    request.set_after(seen_);
    const v1::EventsReply reply = cluster_.event_log().Read(request);
    seen_ = reply.newest();
    std::vector<std::string> texts;
    for (const v1::ClusterEvent& event : reply.events()) texts.push_back(event.text());
    return texts;
  }
  // The record of the run in the store.
  v1::RunRecord Stored() {
    TakeSent();
    v1::RunRecord stored;
    EXPECT_TRUE(stored.ParseFromString(store_.at(RunKey(run_.id()))));
    return stored;
  }
  // Whether the record of the run has changed since it was stored.
  bool IsStored() {
    v1::RunRecord expected = record();
    expected.clear_spec();
    return Stored().DebugString() == expected.DebugString();
  }
  uint64_t Counter(const std::string& name) {
    const auto& counters = cluster_.meta().counters();
    const auto found = counters.find(name);
    return found == counters.end() ? 0 : found->second;
  }

  static inline const absl::Time kStart = absl::FromUnixSeconds(1000);

  CoordinatorOptions options_;
  Cluster cluster_{options_};
  FakeRun run_;
  std::map<std::string, std::string> store_;
  uint64_t connections_ = 0;
  uint64_t seen_ = 0;
};

}  // namespace cadre::testing
