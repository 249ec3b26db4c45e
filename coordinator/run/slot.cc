// A slot outlives its generations. It keeps the history of measured plans, the reason why the last
// generation ended and whether it had a group before (`lived`); Form and Clear reset the rest.
#include "coordinator/run/slot.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cluster/standing.h"

namespace cadre {
namespace {

// Failures of a slot that cost no extra wait, and after which time without one they are forgotten.
constexpr uint32_t kFreeFailures = 10;
constexpr absl::Duration kFailureWindow = absl::Minutes(10);
// Limit on what all ranks of a group have prepared: half of the largest message.
constexpr size_t kMaxPreparedBytes = 4 << 20;
// What a group may add to its plan: buckets, algorithms and links.
constexpr size_t kMaxAddedBytes = 256 << 10;
// A member's clock may run differently, and its message may overtake others.
constexpr absl::Duration kClockAllowance = absl::Seconds(1);

using Axes = google::protobuf::RepeatedPtrField<v1::MeshAxis>;

bool Equal(const Axes& a, const Axes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const v1::MeshAxis& x, const v1::MeshAxis& y) {
                      return x.name() == y.name() && x.size() == y.size();
                    });
}

}  // namespace

Slot::Slot(const std::string& run, uint32_t group, absl::Time now) : waiting_since_(now) {
  record_.set_run(run);
  record_.set_group(group);
}

Slot::Slot(const v1::GroupRecord& record, absl::Time now) : record_(record), waiting_since_(now) {
  plans_.Load(record_);
}

v1::RankSlot Slot::Place(uint32_t rank) const {
  v1::RankSlot place;
  place.set_run(record_.run());
  place.set_group(record_.group());
  place.set_generation(record_.generation());
  place.set_rank(rank);
  return place;
}

void Slot::Form(uint32_t generation, const std::vector<std::string>& members, const v1::Plan& plan,
                absl::Time now) {
  record_.set_generation(generation);
  for (const std::string& member : members) record_.add_members(member);
  *record_.mutable_plan() = plan;
  record_.set_formed_ms(absl::ToUnixMillis(now));
  record_.set_started_ms(0);
  record_.set_version(0);
  record_.set_step(0);
  record_.set_next_step(0);
  record_.set_counted_round(0);
  record_.set_counted_version(0);
  ResetProgress();
}

// Ranks choose buckets and algorithms by the link that they measure. Mesh and layouts are assigned.
absl::Status Slot::CheckReportedPlan(const v1::Plan& plan) const {
  const v1::Plan& assigned = record_.plan();
  if (!Equal(plan.mesh(), assigned.mesh())) {
    return absl::InvalidArgumentError("its mesh differs from the assigned one");
  }
  if (plan.ByteSizeLong() > assigned.ByteSizeLong() + kMaxAddedBytes) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", plan.ByteSizeLong(), " bytes"));
  }
  if (plan.layers_size() != assigned.layers_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has ", plan.layers_size(), " layers, the assigned plan has ", assigned.layers_size()));
  }
  for (int l = 0; l < plan.layers_size(); ++l) {
    if (plan.layers(l).SerializeAsString() == assigned.layers(l).SerializeAsString()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the layout of layer '",
                                                   absl::CEscape(assigned.layers(l).layer()),
                                                   "' differs from the assigned one"));
  }
  return absl::OkStatus();
}

// Rank 0 reports the plan for all ranks, which agreed on it, so one copy in the record is enough.
// A group must fit into one message of the status.
void Slot::Prepare(const v1::Prepared& prepared) {
  v1::Prepared& stored = prepared_[prepared.place().rank()];
  stored = prepared;
  stored.clear_plan();
  if (stored.ByteSizeLong() > kMaxPreparedBytes / ranks()) stored.clear_held();
  if (prepared.has_plan() && prepared.place().rank() == 0) {
    *record_.mutable_obeyed_plan() = prepared.plan();
  }
}

void Slot::Start(uint32_t from_version, uint32_t step, uint32_t next_step, bool catches_up,
                 absl::Time now) {
  record_.set_version(from_version);
  record_.set_step(step);
  // The first version is pulled, unless it is version 0.
  record_.set_counted_version(from_version == 0 ? 0 : from_version - 1);
  record_.set_started(true);
  record_.set_started_ms(absl::ToUnixMillis(now));
  record_.set_lived(true);
  record_.set_next_step(next_step);
  record_.set_at_end(next_step == 0);
  record_.set_catches_up(catches_up);
}

void Slot::Predict(const v1::StepTimes& predicted, bool from_own_measurement) {
  *record_.mutable_predicted() = predicted;
  record_.set_prediction_from_own_measurement(from_own_measurement);
}

void Slot::RecordPlan(double step_seconds, std::optional<double> predicted) {
  plans_.Record(plan(), step_seconds, predicted);
  plans_.Store(record_);
}

void Slot::Clear(const std::string& reason, absl::Time now) {
  record_.set_generation(0);
  record_.clear_members();
  record_.clear_plan();
  record_.clear_obeyed_plan();
  record_.clear_predicted();
  record_.set_prediction_from_own_measurement(false);
  record_.set_started(false);
  record_.set_at_end(false);
  record_.set_catches_up(false);
  record_.set_reason(reason);
  waiting_since_ = now;
  ResetProgress();
}

void Slot::AddFailure(v1::FailureCause cause, const std::string& reason, absl::Time now) {
  v1::FailureRecord& failed = *record_.mutable_failed();
  if (now > absl::FromUnixMillis(failed.last_ms()) + kFailureWindow) failed.set_failures(0);
  cadre::AddFailure(cause, reason, now, failed);
}

absl::Time Slot::blocked_until() const {
  const v1::FailureRecord& failed = record_.failed();
  if (failed.failures() <= kFreeFailures) return absl::InfinitePast();
  return absl::FromUnixMillis(failed.last_ms()) + WaitAfter(failed.failures() - kFreeFailures);
}

absl::Duration Slot::SinceStart(absl::Time now) const {
  return now - absl::FromUnixMillis(record_.started_ms()) + kClockAllowance;
}

absl::Status Slot::NoteStepTime(double seconds, uint64_t steps, absl::Time now) {
  if (steps == 0 || seconds == 0) return absl::OkStatus();
  // Messages arrive with delays, so only the sum of the periods is compared.
  const double limit = absl::ToDoubleSeconds(SinceStart(now)) - claimed_seconds_;
  if (!std::isfinite(seconds) || seconds < 0 || seconds > limit) {
    // The time that has passed is not claimed again.
    claimed_seconds_ = absl::ToDoubleSeconds(SinceStart(now) - kClockAllowance);
    return absl::InvalidArgumentError(
        absl::StrCat("it claims ", seconds, " seconds for ", steps, " steps, and at most ", limit,
                     " seconds have passed beside those of its earlier contributions"));
  }
  claimed_seconds_ += seconds;
  const double newest = seconds / static_cast<double>(steps);
  step_seconds_ = step_seconds_ == 0 ? newest : (step_seconds_ + newest) / 2;
  return absl::OkStatus();
}

bool Slot::ClearFailures() {
  const bool failed = record_.has_failed();
  record_.clear_failed();
  return failed;
}

bool Slot::SetAtEnd() {
  if (record_.at_end()) return false;
  record_.set_at_end(true);
  return true;
}

bool Slot::SetCatchesUp(bool catches_up) {
  if (record_.catches_up() == catches_up) return false;
  record_.set_catches_up(catches_up);
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

// Everything that belongs to one generation and is not in the record.
void Slot::ResetProgress() {
  exchanges = false;
  claimed_seconds_ = 0;
  prepared_.clear();
  progress.Clear();
  measured.reset();
  measured_at = absl::InfinitePast();
  considered = false;
  predicting = false;
  better.reset();
  wait_ended = false;
  preferred_members.clear();
  watch.reset();
  version = 0;
  reported = true;
  nudged_round = 0;
  unanswered = 0;
  early.reset();
  refused_round = 0;
  refusal = v1::REFUSAL_UNSPECIFIED;
  step_seconds_ = 0;
  tokens_per_second_ = 0;
}

// A group that has not reported a loss since its last message keeps the one before.
void Slot::SetProgress(const v1::Progress& reported, uint64_t per_sample, uint32_t batch) {
  NoteTokens(reported, per_sample, batch);
  const v1::Progress before = std::exchange(progress, reported);
  if (!reported.has_loss() && before.has_loss()) progress.set_loss(before.loss());
}

void Slot::NoteTokens(const v1::Progress& reported, uint64_t per_sample, uint32_t batch) {
  if (per_sample > 0) {
    tokens_per_second_ = static_cast<double>(per_sample) * reported.samples_per_second();
    return;
  }
  const uint32_t before = std::max(progress.step(), record_.step());
  if (reported.step() <= before || !(reported.samples_per_second() > 0)) return;
  const double samples = static_cast<double>(batch) * (reported.step() - before);
  tokens_per_second_ =
      static_cast<double>(reported.metrics().tokens()) / samples * reported.samples_per_second();
}

}  // namespace cadre
