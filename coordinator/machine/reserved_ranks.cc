#include "coordinator/machine/reserved_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"

namespace cadre {
namespace {

// How long the other ranks of a program wait, at least, for one whose lease has expired: a process
// may have been suspended, or cut off from the coordinator. A program that is ended loses the steps
// since its last version, so this is longer than the default of cluster.rejoin_wait_ms.
constexpr absl::Duration kMinRankReturn = absl::Minutes(1);

}  // namespace

bool ReservedRanks::Refuse(ConnectionId connection, const v1::Hello& hello) {
  const Member* const other = OtherOfRank(hello);
  if (other == nullptr) return false;
  const v1::Reservation& reservation = hello.reservation();
  cluster_.Refuse(
      connection, v1::REFUSAL_MALFORMED,
      absl::StrCat("rank ", reservation.rank(), " of ", reservation.ranks(), " of program ",
                   reservation.program(), " is the process '", hello.name(), "' on ", hello.host(),
                   ", but also '", other->record.name(), "' on ", other->record.host(), ", of ",
                   other->record.reservation().ranks(), " ranks, which is connected"));
  return true;
}

// Another process that is connected as the same rank of a program, or with another number of ranks.
const Member* ReservedRanks::OtherOfRank(const v1::Hello& hello) const {
  const v1::Reservation& reservation = hello.reservation();
  if (!hello.has_reservation()) return nullptr;
  for (const std::string& id : cluster_.members().RanksOf(reservation.program())) {
    const Member& member = *cluster_.members().Find(id);
    const v1::Reservation& other = member.record.reservation();
    if (member.connected() && member.record.incarnation() != hello.incarnation() &&
        (other.rank() == reservation.rank() || other.ranks() != reservation.ranks())) {
      return &member;
    }
  }
  return nullptr;
}

void ReservedRanks::OnJoined(Member& rank, bool known) {
  const v1::Reservation& reservation = rank.record.reservation();
  if (!known) {
    cluster_.programs().OnJoined(reservation, ReturnLimit(reservation), cluster_.out());
  }
  SendIfEnded(rank);
}

void ReservedRanks::SendMissingRanks(const std::string& program) {
  const Membership::Ids& ranks = cluster_.members().RanksOf(program);
  if (ranks.empty()) return;
  // The same for all ranks of a program, which may be thousands.
  const std::string missing = cluster_.programs().MissingRanks(
      cluster_.members().Find(*ranks.begin())->record.reservation());
  for (const std::string& id : ranks) SendWaiting(*cluster_.members().Find(id), missing);
}

void ReservedRanks::SendReasonOfRun(Member& rank) {
  const v1::Reservation& reservation = rank.record.reservation();
  // Otherwise the rank was sent which ranks are missing.
  const bool complete =
      rank.record.has_reservation() &&
      cluster_.members().RanksOf(reservation.program()).size() == reservation.ranks();
  if (complete) SendWaiting(rank, cluster_.programs().MissingRanks(reservation));
}

// A rank that has lost its stream forgets what it was sent.
void ReservedRanks::SendWaiting(Member& rank, const std::string& missing) {
  const v1::Reservation& reservation = rank.record.reservation();
  std::string awaited;
  const bool waits =
      rank.connected() && !rank.place.has_value() && rank.record.program_ended().empty();
  if (waits) {
    const Run* const run = runs_.LiveRunOf(reservation);
    awaited = !missing.empty() ? absl::StrCat("waiting for ", missing)
              : run == nullptr ? "waiting for the run: the coordinator has none of this id or name"
                               : run->WaitReasonForPrograms();
  }
  if (std::exchange(rank.awaited, awaited) == awaited || !waits) return;
  v1::CoordinatorMessage message;
  message.mutable_waiting()->set_reason(std::move(awaited));
  cluster_.SendTo(rank.id(), message);
}

absl::Time ReservedRanks::ReturnLimit(const v1::Reservation& reservation) {
  const Run* const run = runs_.LiveRunOf(reservation);
  return cluster_.now() +
         std::max(kMinRankReturn, run == nullptr ? kMinRankReturn : RejoinWait(run->spec()));
}

void ReservedRanks::RenewLimits() {
  cluster_.programs().SetLimits([this](const v1::Reservation& rank) { return ReturnLimit(rank); });
}

void ReservedRanks::OnLost(const Member& member) {
  const v1::Reservation& reservation = member.record.reservation();
  if (reservation.ranks() <= 1 || !member.record.program_ended().empty()) return;
  const Membership::Ids& ranks = cluster_.members().RanksOf(reservation.program());
  const bool replaced = std::any_of(ranks.begin(), ranks.end(), [&](const std::string& id) {
    return cluster_.members().Find(id)->record.reservation().rank() == reservation.rank();
  });
  if (!replaced) cluster_.programs().AddLost(member, ReturnLimit(reservation), cluster_.out());
}

void ReservedRanks::EndIncomplete() {
  Programs& programs = cluster_.programs();
  // As for leases, the coordinator does not count time in which it received nothing.
  if (cluster_.members().IsCutOff(cluster_.now())) return RenewLimits();
  for (const Programs::LostRank& lost : programs.Due(cluster_.now())) {
    const v1::Reservation& reservation = lost.record.reservation();
    const Membership::Ids& ranks = cluster_.members().RanksOf(reservation.program());
    const bool awaited = std::any_of(ranks.begin(), ranks.end(), [&](const std::string& id) {
      return cluster_.members().Find(id)->connected();
    });
    Run* const run = runs_.LiveRunOf(reservation);
    if (ranks.empty()) {
      programs.SetLimit(reservation.program(), absl::InfiniteFuture());
    } else if (!awaited || run == nullptr) {
      // The other ranks may return before their leases expire, and the run may still be submitted.
      programs.SetLimit(reservation.program(), ReturnLimit(reservation));
    } else if (programs.ReasonOfEnd(reservation.program()) == nullptr) {
      const std::string reason =
          absl::StrCat(Programs::Describe(lost), " of this program has not returned");
      End(reservation.program(), reason);
      run->stored().AddWarning(absl::StrCat("a program of ", reservation.ranks(),
                                            " ranks was ended: ", Programs::Describe(lost),
                                            " has not returned"));
      runs_.Visit(*run);
    } else {
      programs.Forget(reservation.program(), cluster_.out());
    }
  }
}

void ReservedRanks::End(const std::string& program, const std::string& reason) {
  cluster_.programs().NoteEnded(program, reason);
  cluster_.programs().Forget(program, cluster_.out());
  // Copied, because the records of its ranks change.
  const Membership::Ids ranks = cluster_.members().RanksOf(program);
  for (const std::string& id : ranks) SendIfEnded(*cluster_.members().Find(id));
}

void ReservedRanks::SendIfEnded(Member& worker) {
  const Run* run = nullptr;
  for (const auto& [number, one] : runs_.all()) {
    if (!one.IsReserved(worker.record.reservation())) continue;
    run = &one;
    if (one.live()) break;
  }
  if (run == nullptr) return;
  const std::string* const reason =
      cluster_.programs().ReasonOfEnd(worker.record.reservation().program());
  if (!run->live()) {
    cluster_.SendTo(worker.id(), run->RunEnded(run->record().state() == v1::RUN_STATE_DONE,
                                               run->record().reason()));
  } else if (reason != nullptr) {
    cluster_.SetProgramEnded(worker, *reason);
    cluster_.SendTo(worker.id(), run->RunEnded(/*done=*/false, *reason));
  }
}

}  // namespace cadre
