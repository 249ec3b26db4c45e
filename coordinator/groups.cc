#include "coordinator/groups.h"

namespace cadre {

Slot::Slot(const std::string& run, uint32_t group, absl::Time now) : waiting_since_(now) {
  record_.set_run(run);
  record_.set_group(group);
}

v1::GroupPlace Slot::Place(uint32_t rank) const {
  v1::GroupPlace place;
  place.set_run(record_.run());
  place.set_group(record_.group());
  place.set_generation(record_.generation());
  place.set_rank(rank);
  return place;
}

void Slot::Form(uint32_t generation, const std::vector<std::string>& members, const v1::Plan& plan,
                uint32_t from_version, uint32_t step) {
  record_.set_generation(generation);
  record_.clear_members();
  for (const std::string& member : members) record_.add_members(member);
  *record_.mutable_plan() = plan;
  record_.set_version(from_version);
  record_.set_step(step);
  record_.set_next_step(0);
  record_.set_started(false);
  record_.set_at_end(false);
  record_.set_counted_round(0);
  record_.set_counted_version(0);
  ForgetProgress();
  version = from_version;
}

void Slot::Prepare(const v1::Prepared& prepared) { prepared_[prepared.place().rank()] = prepared; }

void Slot::Start(uint32_t next_step) {
  record_.set_started(true);
  record_.set_lived(true);
  record_.set_next_step(next_step);
  record_.set_at_end(next_step == 0);
}

void Slot::Clear(const std::string& reason, absl::Time now) {
  record_.set_generation(0);
  record_.clear_members();
  record_.clear_plan();
  record_.set_started(false);
  record_.set_at_end(false);
  record_.set_reason(reason);
  waiting_since_ = now;
  ForgetProgress();
}

bool Slot::SetAtEnd() {
  if (record_.at_end()) return false;
  record_.set_at_end(true);
  return true;
}

bool Slot::CountRound(uint32_t round) {
  if (round <= record_.counted_round()) return false;
  record_.set_counted_round(round);
  return true;
}

bool Slot::CountVersion(uint32_t adopted) {
  if (adopted <= record_.counted_version()) return false;
  record_.set_counted_version(adopted);
  return true;
}

void Slot::ForgetProgress() {
  prepared_.clear();
  progress.Clear();
  version = 0;
  unanswered = 0;
  refused_round = 0;
  refusal = v1::REFUSAL_UNSPECIFIED;
}

}  // namespace cadre
