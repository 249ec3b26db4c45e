// Programs with a training loop of their own (Reservation), and what ends them. Part of Machine.
//
// The ranks of a program are started together and wait for each other, so a rank that will not come
// back ends all of them: it has left, or what it sent was refused and would be refused again, or
// its lease has expired and it has not returned within a limit, while others waited for it. A rank
// that is disconnected at that time learns it when it returns, also from a coordinator that was
// restarted meanwhile, and so does one that joins only then.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/machine.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// How long the other ranks of a program wait, at least, for one whose lease has expired: a process
// may have been suspended, or cut off from the coordinator. A program that is ended loses the steps
// since its last version, so this is longer than the default of cluster.rejoin_wait_ms.
constexpr absl::Duration kMinRankReturn = absl::Minutes(1);

}  // namespace

// Another process that is connected as the same rank of a program, or with another number of ranks.
const Member* Machine::OtherOfRank(const v1::Hello& hello) const {
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

void Machine::OnGoodbye(const Member& member, const v1::Goodbye& goodbye) {
  // Copied, because Drop destroys the member that owns it.
  const v1::MemberRecord left = member.record;
  Drop(left.member_id(), absl::StrCat("left: ", goodbye.reason()), kReleased);
  if (!left.has_reservation()) return;
  Run* const run = LiveRunOf(left.reservation());
  if (run == nullptr) return;  // it has ended, and its ranks leave
  if (goodbye.finished()) run->OnLoopEnded();
  if (left.reservation().ranks() == 1) return;
  EndProgram(left.reservation().program(),
             absl::StrCat("rank ", left.reservation().rank(),
                          " of this program has left: ", goodbye.reason()));
}

// The member would send the message again after each reconnect. Without its rank it does not.
void Machine::OnRefused(const Cluster::RefusedMessage& refused) {
  const Member* const member = cluster_.members().Find(refused.member_id);
  if (member == nullptr || !member->place.has_value()) return;
  const std::string reason = absl::StrCat("a message was refused: ", refused.reason);
  const v1::Reservation reservation = member->record.reservation();
  Visit(member->place->run())->FailRefused(*member, reason);
  if (member->record.has_reservation()) {
    EndProgram(reservation.program(),
               absl::StrCat("rank ", reservation.rank(), " of this program: ", reason));
  }
}

Run* Machine::LiveRunOf(const v1::Reservation& reservation) {
  for (auto& [number, run] : runs_) {
    if (run.live() && run.IsReserved(reservation)) return &run;
  }
  return nullptr;
}

void Machine::SendMissingRanks(const std::string& program) {
  const Membership::Ids& ranks = cluster_.members().RanksOf(program);
  if (ranks.empty()) return;
  // The same for all ranks of a program, which may be thousands.
  const std::string missing = cluster_.programs().MissingRanks(
      cluster_.members().Find(*ranks.begin())->record.reservation());
  for (const std::string& id : ranks) SendWaiting(*cluster_.members().Find(id), missing);
}

void Machine::SendReasonOfRun(Member& rank) {
  const v1::Reservation& reservation = rank.record.reservation();
  // Otherwise the rank was sent which ranks are missing.
  const bool complete = rank.record.has_reservation() &&
                        cluster_.members().RanksOf(reservation.program()).size() ==
                            reservation.ranks();
  if (complete) SendWaiting(rank, cluster_.programs().MissingRanks(reservation));
}

// A rank that has lost its stream forgets what it was sent.
void Machine::SendWaiting(Member& rank, const std::string& missing) {
  const v1::Reservation& reservation = rank.record.reservation();
  std::string awaited;
  const bool waits = rank.connected() && !rank.place.has_value() &&
                     rank.record.program_ended().empty();
  if (waits) {
    const Run* const run = LiveRunOf(reservation);
    awaited = !missing.empty() ? absl::StrCat("waiting for ", missing)
              : run == nullptr ? "waiting for the run: the coordinator has none of this id or name"
                               : run->WaitReasonForPrograms();
  }
  if (std::exchange(rank.awaited, awaited) == awaited || !waits) return;
  v1::CoordinatorMessage message;
  message.mutable_waiting()->set_reason(std::move(awaited));
  cluster_.SendTo(rank.id(), message);
}

absl::Time Machine::ReturnLimit(const v1::Reservation& reservation) {
  const Run* const run = LiveRunOf(reservation);
  return cluster_.now() +
         std::max(kMinRankReturn, run == nullptr ? kMinRankReturn : RejoinWait(run->spec()));
}

void Machine::RenewReturnLimits() {
  cluster_.programs().SetLimits([this](const v1::Reservation& rank) { return ReturnLimit(rank); });
}

void Machine::OnRankLost(const Member& member) {
  const v1::Reservation& reservation = member.record.reservation();
  if (reservation.ranks() <= 1 || !member.record.program_ended().empty()) return;
  const Membership::Ids& ranks = cluster_.members().RanksOf(reservation.program());
  const bool replaced = std::any_of(ranks.begin(), ranks.end(), [&](const std::string& id) {
    return cluster_.members().Find(id)->record.reservation().rank() == reservation.rank();
  });
  if (!replaced) cluster_.programs().AddLost(member, ReturnLimit(reservation), cluster_.out());
}

void Machine::OnRankJoined(const v1::Reservation& reservation) {
  cluster_.programs().OnJoined(reservation, ReturnLimit(reservation), cluster_.out());
}

void Machine::EndIncompletePrograms() {
  Programs& programs = cluster_.programs();
  // As for leases, the coordinator does not count time in which it received nothing.
  if (cluster_.members().IsCutOff(cluster_.now())) return RenewReturnLimits();
  for (const Programs::LostRank& lost : programs.Due(cluster_.now())) {
    const v1::Reservation& reservation = lost.record.reservation();
    const Membership::Ids& ranks = cluster_.members().RanksOf(reservation.program());
    const bool awaited = std::any_of(ranks.begin(), ranks.end(), [&](const std::string& id) {
      return cluster_.members().Find(id)->connected();
    });
    Run* const run = LiveRunOf(reservation);
    if (ranks.empty()) {
      programs.SetLimit(reservation.program(), absl::InfiniteFuture());
    } else if (!awaited || run == nullptr) {
      // The other ranks may return before their leases expire, and the run may still be submitted.
      programs.SetLimit(reservation.program(), ReturnLimit(reservation));
    } else if (programs.ReasonOfEnd(reservation.program()) == nullptr) {
      const std::string reason =
          absl::StrCat(Programs::Describe(lost), " of this program has not returned");
      EndProgram(reservation.program(), reason);
      run->AddWarning(absl::StrCat("a program of ", reservation.ranks(),
                                   " ranks was ended: ", Programs::Describe(lost),
                                   " has not returned"));
      unsettled_.insert(run->number());
    } else {
      programs.Forget(reservation.program(), cluster_.out());
    }
  }
}

void Machine::EndProgram(const std::string& program, const std::string& reason) {
  cluster_.programs().NoteEnded(program, reason);
  cluster_.programs().Forget(program, cluster_.out());
  // Copied, because the records of its ranks change.
  const Membership::Ids ranks = cluster_.members().RanksOf(program);
  for (const std::string& id : ranks) SendIfEnded(*cluster_.members().Find(id));
}

void Machine::SendIfEnded(Member& worker) {
  const Run* run = nullptr;
  for (const auto& [number, one] : runs_) {
    if (!one.IsReserved(worker.record.reservation())) continue;
    run = &one;
    if (one.live()) break;
  }
  if (run == nullptr) return;
  const std::string* const reason =
      cluster_.programs().ReasonOfEnd(worker.record.reservation().program());
  if (!run->live()) {
    run->SendRunEnded(worker);
  } else if (reason != nullptr) {
    cluster_.SetProgramEnded(worker, *reason);
    run->SendEnded(worker, /*done=*/false, *reason);
  }
}

}  // namespace cadre
