#include "coordinator/cluster/programs.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Maximum number of missing ranks that a text names.
constexpr size_t kMaxNamedRanks = 8;

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string ProcessText(uint32_t rank, const std::string& name, const std::string& host,
                        absl::Time last_heard) {
  return absl::StrCat(rank, " ('", name, "' on ", host, ", no message since ", TimeText(last_heard),
                      ")");
}

std::string ProcessText(uint32_t rank, const Member& member) {
  return ProcessText(rank, member.record.name(), member.record.host(), member.last_heard);
}

std::string ProcessText(const v1::LostRankRecord& lost) {
  return ProcessText(lost.reservation().rank(), lost.name(), lost.host(),
                     absl::FromUnixMillis(lost.last_heard_ms()));
}

}  // namespace

void Programs::NoteEnded(const std::string& program, const std::string& reason) {
  if (!ended_.try_emplace(program, reason).second) return;
  ended_order_.push_back(program);
  if (ended_order_.size() <= kMaxEndedPrograms) return;
  ended_.erase(ended_order_.front());
  ended_order_.pop_front();
}

const std::string* Programs::ReasonOfEnd(const std::string& program) const {
  const auto found = ended_.find(program);
  return found == ended_.end() ? nullptr : &found->second;
}

// ---- Lost ranks

void Programs::Load(const v1::LostRankRecord& record, absl::Time until) {
  lost_[{record.reservation().program(), record.reservation().rank()}] = {record, until};
}

void Programs::AddLost(const Member& member, absl::Time until, Outbox& out) {
  v1::LostRankRecord record;
  *record.mutable_reservation() = member.record.reservation();
  record.set_name(member.record.name());
  record.set_host(member.record.host());
  record.set_last_heard_ms(absl::ToUnixMillis(member.last_heard));
  out.Put(LostRankKey(record.reservation().program(), record.reservation().rank()), record);
  Load(record, until);
  if (lost_.size() <= kMaxLostRanks) return;
  Erase(std::min_element(lost_.begin(), lost_.end(),
                         [](const auto& a, const auto& b) {
                           return a.second.record.last_heard_ms() < b.second.record.last_heard_ms();
                         }),
        out);
}

void Programs::OnJoined(const v1::Reservation& reservation, absl::Time until, Outbox& out) {
  if (const auto same = lost_.find({reservation.program(), reservation.rank()});
      same != lost_.end()) {
    Erase(same, out);
  }
  const auto [begin, end] = LostOf(reservation.program());
  for (auto it = begin; it != end; ++it) {
    LostRank& lost = lost_.at(it->first);
    // Without a limit, no rank has waited.
    lost.until = lost.until == absl::InfiniteFuture() ? until : std::max(lost.until, until);
  }
}

std::vector<Programs::LostRank> Programs::Due(absl::Time now) const {
  std::vector<LostRank> due;
  for (const auto& [key, lost] : lost_) {
    if (lost.until <= now) due.push_back(lost);
  }
  return due;
}

void Programs::SetLimits(absl::FunctionRef<absl::Time(const v1::Reservation&)> limit) {
  for (auto& [key, lost] : lost_) lost.until = limit(lost.record.reservation());
}

void Programs::SetLimit(const std::string& program, absl::Time until) {
  const auto [begin, end] = LostOf(program);
  for (auto it = begin; it != end; ++it) lost_.at(it->first).until = until;
}

void Programs::Forget(const std::string& program, Outbox& out) {
  const auto [begin, end] = LostOf(program);
  for (auto it = begin; it != end;) it = Erase(it, out);
}

absl::Time Programs::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, lost] : lost_) next = std::min(next, lost.until);
  return next;
}

std::pair<Programs::Lost::const_iterator, Programs::Lost::const_iterator> Programs::LostOf(
    const std::string& program) const {
  return {lost_.lower_bound({program, 0}),
          lost_.upper_bound({program, std::numeric_limits<uint32_t>::max()})};
}

Programs::Lost::iterator Programs::Erase(Lost::const_iterator entry, Outbox& out) {
  out.EraseOne(LostRankKey(entry->first.first, entry->first.second));
  return lost_.erase(entry);
}

// ---- Texts

std::string Programs::Describe(const LostRank& lost) {
  return absl::StrCat("rank ", ProcessText(lost.record));
}

std::string Programs::Describe(uint32_t rank, const Member& member) {
  return absl::StrCat("rank ", ProcessText(rank, member));
}

std::string Programs::MissingRanks(const v1::Reservation& reservation) const {
  // A rank may have two members: a process that has lost its stream, and its successor.
  std::map<uint32_t, const Member*> present;
  for (const std::string& id : members_.RanksOf(reservation.program())) {
    const Member& member = *members_.Find(id);
    const Member*& known = present[member.record.reservation().rank()];
    if (known == nullptr || member.connected()) known = &member;
  }
  std::vector<std::string> missing;
  size_t more = 0;
  absl::Time until = absl::InfiniteFuture();
  for (uint32_t rank = 0; rank < reservation.ranks(); ++rank) {
    const auto found = present.find(rank);
    if (found != present.end() && found->second->connected()) continue;
    const auto lost = lost_.find({reservation.program(), rank});
    if (found == present.end() && lost != lost_.end()) until = std::min(until, lost->second.until);
    if (missing.size() == kMaxNamedRanks) {
      ++more;
    } else if (found != present.end()) {
      missing.push_back(ProcessText(rank, *found->second));
    } else if (lost != lost_.end()) {
      missing.push_back(ProcessText(lost->second.record));
    } else {
      missing.push_back(absl::StrCat(rank, " (has not joined)"));
    }
  }
  if (missing.empty()) return "";
  const bool one = missing.size() == 1;
  return absl::StrCat(
      one ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "", " of ", reservation.ranks(),
      until == absl::InfiniteFuture() ? ""
                                      : absl::StrCat("; the program ends at ", TimeText(until),
                                                     " without ", one ? "it" : "them"));
}

}  // namespace cadre
