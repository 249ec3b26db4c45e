// A hostile member: a registered worker that repeats what other members have sent, with forged
// ranks, groups, generations and rounds, and calls aggregators as if it were one of their ranks. It
// receives no work, because no run accepts its device, and therefore no key of a generation.
//
// Nothing that it sends may change a run: the coordinator and the aggregators must refuse it.
//
// Thread-compatible.
#pragma once

#include <deque>

#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/membership_link.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_client.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Intruder {
 public:
  Intruder(World& world, Network& network, Directory& directory);

  void Start();
  // Ends what it sends, but it stays registered.
  void Stop() { life_.End(); }
  // A member has sent the message.
  void Record(const v1::MemberMessage& message);

 private:
  void SendNext();
  // Stages and pulls as the rank in `place`.
  void CallAggregator(const v1::RankSlot& place);

  World& world_;
  Directory& directory_;
  Lifetime life_;
  std::deque<v1::MemberMessage> recorded_;
  MembershipLink link_;
};

}  // namespace cadre::simulation
