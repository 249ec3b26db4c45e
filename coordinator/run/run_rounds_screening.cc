// The screen of a round, between the last Applied and the commit. Part of RunRounds.
//
//   last Applied(attempt a)    ScreenRound compares the groups' changes
//     nothing is unusual       the version is published: FinishCommit
//     otherwise                CommitRecord(r) with attempt a + 1 is written, without what is left
//     out,
//                              and Apply(r, attempt a + 1) is sent to every shard
//
// So the record that is durable before an order always has the participants of that order, and the
// version that groups, readers and replay know was made by its last attempt. Each attempt leaves
// out a participant or clips one that was not clipped before, so there are at most two for each
// participant. If nothing remains, the last attempt makes a copy of the version before, and the run
// is parked there.
//
// A crash of the coordinator between two attempts repeats the last one that its store has; an
// aggregator that has made the version by an earlier one makes it again.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/screen.h"
#include "coordinator/store/keys.h"
#include "model/screen.h"

namespace cadre {
namespace {

// Successive rounds that leave a group out until its generation ends.
constexpr uint32_t kMaxLeftOut = 3;

}  // namespace

bool RunRounds::Screen() {
  const std::optional<v1::Screen> screen = ScreenOf(run_.spec().averaging());
  const v1::CommitRecord& closing = *commits_.closing();
  const bool has_claims = closing.claims_size() == closing.participants_size();
  if (!screen || closing.attempt() == 0 || closing.has_restores() || !has_claims) return false;
  const std::vector<v1::ScreenedChange> screened = ScreenRound(*screen, closing, past_changes_);
  if (screened.empty()) return false;
  commits_.Screen(screened, [this](v1::CommitRecord& commit) {
    if (commit.participants().empty()) {
      FillCopy(commit);
    } else {
      FillFromClaims(commit);
    }
  });
  for (const v1::ScreenedChange& change : screened) NoteScreened(change);
  cluster_.Count("rounds_screened");
  cluster_.out().Put(CommitKey(run_.id(), commits_.closing()->round()), *commits_.closing());
  return true;
}

void RunRounds::NoteScreened(const v1::ScreenedChange& change) {
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
  if (change.group() >= slots_.size()) return;
  Slot& slot = slots_[change.group()];
  slot.NoteScreened(change);
  if (change.scale() == 0 && slot.record().generation() == change.generation()) {
    slot.refused_round = change.round();
    slot.refusal = v1::REFUSAL_SCREENED;
  }
  stored_.Save(slot);
}

void RunRounds::FillCopy(v1::CommitRecord& commit) const {
  commit.set_restores(record_.version());
  commit.set_step(record_.step());
  commit.set_samples(0);
  commit.set_run_samples(record_.samples());
  commit.clear_loss();
  if (record_.has_loss()) commit.set_loss(record_.loss());
  commit.clear_metrics();
  commit.clear_outer();
  commit.clear_up();
  commit.clear_down();
  commit.clear_fragment();
  commit.clear_trim();
  *commit.mutable_division() = DivisionOf(record_);
}

std::string RunRounds::WhyEmpty() const {
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

std::vector<uint32_t> RunRounds::Distrusted() const {
  std::vector<uint32_t> groups;
  for (const uint32_t group : slots_.started()) {
    if (slots_[group].record().left_out() >= kMaxLeftOut) groups.push_back(group);
  }
  return groups;
}

v1::Refusal RunRounds::WhyNotIncluded(const Slot& slot, uint32_t round) const {
  return commits_.LeavesOut(slot.group(), slot.record().generation(), round)
             ? v1::REFUSAL_SCREENED
             : v1::REFUSAL_CLOSED_ROUND;
}

}  // namespace cadre
