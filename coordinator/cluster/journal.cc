#include "coordinator/cluster/journal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/secret_key.h"
#include "coordinator/store/keys.h"
#include "proto/enum_text.h"

namespace cadre {

void Journal::Begin(absl::Time now) {
  now_ = std::max(now_, now);
  if (started_ == absl::InfinitePast()) started_ = now_;
}

std::vector<Action> Journal::Take() {
  if (std::exchange(meta_changed_, false)) out_.Put(kMetaKey, meta_);
  return out_.Take();
}

void Journal::Restore(const v1::MetaRecord& meta, uint64_t epoch) {
  meta_ = meta;
  // The lower half of all numbers is enough for gaps, even if the coordinator starts often.
  if (meta_.starts() > 0 && meta_.generation() <= kMaxReportedNumber) {
    const uint32_t gap = meta_.backup() ? kBackupGap : kGenerationGap;
    meta_.set_generation(After(meta_.generation(), gap));
  }
  if (meta_.backup()) meta_.set_run(meta_.run() + kBackupRuns);
  meta_.clear_backup();
  meta_.set_starts(meta_.starts() + 1);
  meta_.set_epoch(std::max(meta_.epoch() + 1, epoch));
  if (meta_.key_seed().empty()) meta_.set_key_seed(options_.key_seed);
  out_.SetEpoch(meta_.epoch());
  meta_changed_ = true;
  Report(v1::EVENT_KIND_COORDINATOR_STARTED,
         absl::StrCat("the coordinator has started, start ", meta_.starts(), " with this store"));
}

uint32_t Journal::NewGeneration() {
  meta_changed_ = true;
  meta_.set_generation(meta_.generation() + 1);
  return meta_.generation();
}

std::string Journal::KeyOf(uint32_t generation) const {
  return KeyBytes(DeriveKey(meta_.key_seed(), absl::StrCat("generation ", generation)));
}

uint32_t Journal::NewMember() {
  meta_changed_ = true;
  meta_.set_member(meta_.member() + 1);
  return meta_.member();
}

uint32_t Journal::NewRun() {
  meta_changed_ = true;
  meta_.set_run(meta_.run() + 1);
  return meta_.run();
}

void Journal::NoteRemovedRun(uint32_t run) {
  meta_changed_ = true;
  meta_.set_removed_run(std::max(meta_.removed_run(), run));
}

uint32_t Journal::After(uint32_t generation, uint32_t gap) const {
  return generation + gap + static_cast<uint32_t>(absl::ToUnixMillis(now_) % gap);
}

void Journal::SkipGenerations(uint32_t highest) {
  meta_changed_ = true;
  meta_.set_generation(std::max(meta_.generation(), After(highest, kUnknownGenerations)));
}

void Journal::SkipRuns(uint32_t highest) {
  meta_changed_ = true;
  meta_.set_run(std::max(meta_.run(), highest));
}

void Journal::Count(absl::string_view name, uint64_t amount) {
  (*meta_.mutable_counters())[std::string(name)] += amount;
  meta_changed_ = true;
}

void Journal::CountRefusal(v1::Refusal refusal) {
  Count(absl::StrCat("refused_", EnumText(refusal)));
}

void Journal::Report(v1::EventKind kind, absl::string_view text) { ReportRun(kind, "", text); }

void Journal::ReportRun(v1::EventKind kind, absl::string_view run, absl::string_view text) {
  v1::ClusterEvent event;
  event.set_kind(kind);
  event.set_run(std::string(run));
  event.set_text(std::string(text));
  event_log_.Add(std::move(event), now_, out_);
}

void Journal::ReportGroup(v1::EventKind kind, const v1::RankSlot& group, absl::string_view text) {
  v1::ClusterEvent event;
  event.set_kind(kind);
  event.set_run(group.run());
  event.set_group(group.group());
  event.set_text(std::string(text));
  event_log_.Add(std::move(event), now_, out_);
}

void Journal::SetLimitReached(const std::string& limit) {
  limit_reached_ = limit;
  if (!limit.empty()) Count("limits_reached");
  Report(v1::EVENT_KIND_COORDINATOR_LIMIT,
         limit.empty() ? "the coordinator has room for connections again" : limit);
}

}  // namespace cadre
