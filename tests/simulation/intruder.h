// A hostile member: a registered worker that repeats what other members have sent, with forged
// ranks, groups, generations and rounds. It receives no work, because no run accepts its device.
//
// Nothing that it sends may change a run: the coordinator must refuse it.
//
// Thread-compatible.
#pragma once

#include <deque>

#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/membership_link.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Intruder {
 public:
  Intruder(World& world, Network& network, uint32_t protocol);

  void Start();
  // Ends what it sends, but it stays registered.
  void Stop() { life_.End(); }
  // A member has sent the message.
  void Record(const v1::MemberMessage& message);

 private:
  void SendNext();

  World& world_;
  Lifetime life_;
  std::deque<v1::MemberMessage> recorded_;
  MembershipLink link_;
};

}  // namespace cadre::simulation
