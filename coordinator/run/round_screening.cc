// The screen of a round, between the last Applied and the commit.
//
//   last Applied(attempt a)   ScreenRound compares the groups' changes
//   nothing is unusual        the version is published: FinishCommit
//   otherwise                 CommitRecord(r) is written with attempt a + 1, without what is left
//                             out, and Apply(r) with this attempt is sent to every shard
//
// So the record that is durable before an order always has the participants of that order, and the
// version that groups, readers and replay know was made by its last attempt. Each attempt leaves
// out a participant or clips one that was not clipped before, so there are at most two for each
// participant. If nothing remains, the last attempt makes a copy of the version before, and the run
// is parked there.
//
// A crash of the coordinator between two attempts repeats the last one that its store has; an
// aggregator that has made the version by an earlier one makes it again.
#include "coordinator/run/round_screening.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/run/commit_rules.h"
#include "coordinator/run/run_view.h"
#include "coordinator/store/keys.h"
#include "model/screen.h"

namespace cadre {
namespace {

// Successive rounds that leave a group out until its generation ends.
constexpr uint32_t kMaxLeftOut = 3;

}  // namespace

bool RoundScreening::Screen() {
  const std::optional<v1::Screen> screen = ScreenOf(run_.spec().averaging());
  const v1::CommitRecord& closing = *commits_.closing();
  const bool has_claims = closing.claims_size() == closing.participants_size();
  if (!screen || closing.attempt() == 0 || closing.has_restores() || !has_claims) return false;
  const std::vector<v1::ScreenedChange> screened = ScreenRound(*screen, closing, past_);
  if (screened.empty()) return false;
  commits_.Screen(screened, [this](v1::CommitRecord& commit) {
    if (commit.participants().empty()) {
      FillCopy(run_.record(), commit);
    } else {
      FillFromClaims(run_.record(), commit);
    }
  });
  for (const v1::ScreenedChange& change : screened) NoteScreened(change);
  cluster_.Count("rounds_screened");
  cluster_.out().Put(CommitKey(run_.id(), commits_.closing()->round()), *commits_.closing());
  return true;
}

void RoundScreening::NoteScreened(const v1::ScreenedChange& change) {
  cluster_.CountRefusal(v1::REFUSAL_SCREENED);
  v1::RankSlot place;
  place.set_run(run_.id());
  place.set_group(change.group());
  place.set_generation(change.generation());
  cluster_.ReportGroup(
      v1::EVENT_KIND_CONTRIBUTION_REFUSED, place,
      absl::StrCat("the contribution of group ", change.group(), " to round ", change.round(),
                   change.scale() > 0 ? absl::StrCat(" was clipped to ", change.scale(), " of it")
                                      : " was left out",
                   ": ", WhyScreened(change)));
  v1::GroupScreening& record = (*stored_.record().mutable_screening())[change.group()];
  record.set_screened(record.screened() + 1);
  if (record.newest().generation() != change.generation()) record.set_left_out(0);
  if (change.scale() == 0) record.set_left_out(record.left_out() + 1);
  *record.mutable_newest() = change;
  stored_.Save();
  if (change.scale() > 0 || change.group() >= slots_.size()) return;
  Slot& slot = slots_[change.group()];
  if (slot.record().generation() != change.generation()) return;
  slot.refused_round = change.round();
  slot.refusal = v1::REFUSAL_SCREENED;
}

void RoundScreening::OnCommit(const v1::CommitRecord& commit) {
  past_.Add(commit);
  auto& records = *stored_.record().mutable_screening();
  for (const v1::Participant& participant : commit.participants()) {
    const auto found = records.find(participant.group());
    if (found != records.end()) found->second.set_left_out(0);
  }
}

absl::Status RoundScreening::Load(const std::map<std::string, std::string>& records) {
  const uint32_t version = run_.record().version();
  for (uint32_t round = version - std::min(version, PastChanges::kRemembered); round <= version;
       ++round) {
    const auto it = records.find(CommitKey(run_.id(), round));
    if (it == records.end()) continue;
    v1::CommitRecord commit;
    CADRE_RETURN_IF_ERROR(ParseRecord(it->first, it->second, commit));
    past_.Add(commit);
  }
  return absl::OkStatus();
}

std::string RoundScreening::WhyEmpty() const {
  const v1::CommitRecord& newest = *commits_.newest();
  if (!newest.has_restores() || newest.attempt() == 0) return "";
  std::string why;
  for (const v1::ScreenedChange& change : newest.screened()) {
    if (change.round() != newest.round()) continue;
    absl::StrAppend(&why, why.empty() ? "" : "; ", "group ", change.group(), ": ",
                    WhyScreened(change));
  }
  return absl::StrCat("nothing remains of round ", newest.round(), ": ", why);
}

std::map<uint32_t, std::string> RoundScreening::MarkDistrusted() {
  std::map<uint32_t, std::string> reasons;
  for (auto& [group, record] : *stored_.record().mutable_screening()) {
    if (record.left_out() < kMaxLeftOut || !slots_.started().contains(group)) continue;
    if (slots_[group].record().generation() != record.newest().generation()) continue;
    reasons[group] =
        absl::StrCat("rounds have left out its contributions: ", WhyScreened(record.newest()));
    record.set_left_out(0);
    record.set_branch(run_.record().version());
  }
  return reasons;
}

v1::Refusal RoundScreening::WhyNotIncluded(const Slot& slot, uint32_t round) const {
  return commits_.LeavesOut(slot.group(), slot.record().generation(), round)
             ? v1::REFUSAL_SCREENED
             : v1::REFUSAL_CLOSED_ROUND;
}

}  // namespace cadre
