// A cluster without runs: tests join members, and look at what is stored, sent and reported.
//
// Thread-compatible.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/protocol.h"
#include "coordinator/cluster/cluster.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre::testing {

class ClusterTest : public ::testing::Test {
 protected:
  static inline const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

  ClusterTest() {
    options_.protocol = kProtocol;
    cluster_.Begin(kStart);
    cluster_.Restore({}, 1);
    TakeSent();
  }
  static v1::Hello HelloOf(v1::Role role, const std::string& name,
                           const std::string& incarnation = "p1") {
    v1::Hello hello;
    hello.set_protocol(kProtocol);
    hello.set_role(role);
    hello.set_name(name);
    hello.set_incarnation(incarnation);
    hello.set_address(name + ":1");
    hello.set_host("host of " + name);
    return hello;
  }
  // Sends Hello on a new stream. Returns the member if it was not refused.
  Member* Join(const v1::Hello& hello) {
    cluster_.members().AddPending(++connections_, cluster_.now());
    const auto joined = cluster_.OnHello(connections_, hello);
    if (!joined.has_value()) return nullptr;
    known_ = joined->known;
    replaced_ = joined->replaced;
    cluster_.Welcome(*joined->member, connections_);
    return joined->member;
  }
  Member& JoinWorker(const std::string& name, const std::string& incarnation = "p1") {
    return *Join(HelloOf(v1::ROLE_WORKER, name, incarnation));
  }
  Member& JoinAggregator(const std::string& name, const std::string& incarnation = "p1") {
    return *Join(HelloOf(v1::ROLE_AGGREGATOR, name, incarnation));
  }
  // Carries out what was stored. Returns the messages that were sent; streams that were ended and
  // replies are kept.
  std::vector<v1::CoordinatorMessage> TakeSent() {
    std::vector<v1::CoordinatorMessage> sent;
    ended_.clear();
    for (const Action& action : cluster_.Take()) {
      if (const auto* op = std::get_if<Store::Op>(&action)) ApplyTo(store_, *op);
      if (const auto* send = std::get_if<Send>(&action)) sent.push_back(send->message);
      if (const auto* end = std::get_if<Disconnect>(&action)) ended_.push_back(end->connection);
      if (const auto* replied = std::get_if<Replied>(&action)) replied_ = *replied;
    }
    return sent;
  }
  std::string RefusalOf(const v1::Hello& hello) {
    EXPECT_EQ(Join(hello), nullptr);
    const auto sent = TakeSent();
    return sent.empty() ? "" : sent.back().refused().reason();
  }
  Replied Cordon(const CordonMembers& cordon) {
    Replied replied = cluster_.OnCordonMembers(cordon);
    TakeSent();
    return replied;
  }
  uint64_t Counter(const std::string& name) {
    const auto& counters = cluster_.meta().counters();
    const auto found = counters.find(name);
    return found == counters.end() ? 0 : found->second;
  }
  std::vector<std::string> NewEvents() {
    v1::EventsRequest request;
    request.set_after(seen_);
    const v1::EventsReply reply = cluster_.event_log().Read(request);
    seen_ = reply.newest();
    std::vector<std::string> texts;
    for (const v1::ClusterEvent& event : reply.events()) texts.push_back(event.text());
    return texts;
  }
  void Wait(absl::Duration time) { cluster_.Begin(cluster_.now() + time); }

  CoordinatorOptions options_;
  Cluster cluster_{options_};
  std::map<std::string, std::string> store_;
  ConnectionId connections_ = 0;
  std::vector<ConnectionId> ended_;
  Replied replied_;
  bool known_ = false;
  std::vector<std::string> replaced_;
  uint64_t seen_ = 0;
};

}  // namespace cadre::testing
