// A member that follows the protocol of a worker or of an aggregator (membership.proto) without any
// data: the load of the coordinator is real, the model is only its digests.
//
// A worker answers Assignment by Prepared, contributes when its driver asks for it, and adopts the
// version that a Decision names. An aggregator answers OpenRun by RunOpened and Apply by Applied.
// Runs of LoadOptions::Specs request no evaluation before their last step.
//
// Pure and thread-compatible: the driver owns streams and time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/rank_slot.h"

namespace cadre {

class FakeMember {
 public:
  // `number` must be unique among the members of the same role.
  FakeMember(v1::Role role, int number, std::string host);

  // A new process of this member, without lease and rank.
  void Restart();

  v1::MemberMessage Hello() const;
  // Includes the counter "heartbeats", the number of heartbeats of this process.
  v1::MemberMessage Heartbeat();
  uint64_t heartbeats() const { return heartbeats_; }

  // The member's answers, in order.
  std::vector<v1::MemberMessage> Handle(const v1::CoordinatorMessage& message);

  // Whether it is rank 0 of a group that trains, so that Progress and Contributed are expected.
  bool leads() const { return next_step_ > 0 && place_.rank() == 0; }
  // Requires: leads(). Contributed ends the training until the Decision.
  v1::MemberMessage Progress() const;
  v1::MemberMessage Contributed();

  uint32_t heartbeat_ms() const { return heartbeat_ms_; }
  // Decisions that included the group's contribution.
  int included() const { return included_; }

 private:
  void OnAssignment(const v1::Assignment& assignment, v1::MemberMessage& answer);
  std::vector<v1::MemberMessage> OnStart(const v1::Start& start);
  v1::MemberMessage Adopted(uint64_t digest) const;
  bool OnDecision(const v1::Decision& decision, v1::MemberMessage& answer);
  v1::MemberMessage OnOpenRun(const v1::OpenRun& open);
  v1::MemberMessage OnApply(const v1::Apply& apply);

  const v1::Role role_;
  const std::string name_;
  const std::string host_;
  int incarnation_ = 1;
  uint64_t heartbeats_ = 0;
  uint32_t heartbeat_ms_ = 0;
  // Worker: its rank (generation 0: none), what its group has adopted, the step at which it
  // contributes (0: it does not train), and the samples of its group in a step.
  v1::RankSlot place_;
  uint32_t version_ = 0;
  uint32_t step_ = 0;
  uint32_t next_step_ = 0;
  uint32_t batch_ = 0;
  int included_ = 0;
  // Aggregator: newest version of its shard, by run.
  std::map<std::string, uint32_t> versions_;
};

}  // namespace cadre
