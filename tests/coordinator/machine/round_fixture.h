// A cluster whose groups contribute on request, for tests of rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {

class MachineRoundTest : public MachineTest {
 protected:
  // Sends the contribution, and makes the worker send it again after a reconnect.
  void Contribute(FakeWorker& lead, const v1::Contributed& contributed) {
    lead.contributed = contributed;
    cluster_.Send(lead, contributed);
  }
  // The rounds of the nudges that the worker has received.
  static std::vector<uint32_t> Nudges(const FakeWorker& worker) {
    std::vector<uint32_t> rounds;
    for (const auto& message : worker.received) {
      if (message.has_nudge()) rounds.push_back(message.nudge().round());
    }
    return rounds;
  }
  // The worker's group reports that it has loaded the version from which it was started.
  void ReportLoaded(const FakeWorker& lead) {
    v1::Adopted adopted;
    *adopted.mutable_place() = lead.place();
    adopted.set_version(lead.start->version());
    adopted.set_digest(lead.start->digest());
    cluster_.Send(lead, adopted);
  }
  static v1::RunSpec WithQuorum(uint32_t quorum, uint32_t groups = 2) {
    v1::RunSpec spec = MakeSpec(groups, 1, 5, 100);
    spec.mutable_averaging()->set_quorum(quorum);
    spec.mutable_averaging()->set_min_grace_ms(1000);
    spec.mutable_averaging()->mutable_keep_versions()->set_count(0);
    return spec;
  }
  int Decisions(const std::string& run, uint32_t group) {
    int n = 0;
    for (const auto& message : cluster_.Lead(run, group).received) n += message.has_decision();
    return n;
  }
};

}  // namespace cadre::testing
