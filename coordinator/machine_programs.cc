// Programs with a training loop of their own (Reservation), and what ends them. Part of Machine.
//
// The ranks of a program are started together and wait for each other, so a rank that will not come
// back ends all of them: it has left, or what it sent was refused and would be refused again. A
// rank that is disconnected at that time learns it when it returns, also from a coordinator that
// was restarted meanwhile, and so does one that joins only then.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"

namespace cadre {
namespace {

// Number of programs that have ended and are remembered.
constexpr size_t kMaxEndedPrograms = 1000;

}  // namespace

// Another process that is connected as the same rank of a program, or with another number of ranks.
const Member* Machine::OtherOfRank(const v1::Hello& hello) const {
  const v1::Reservation& reservation = hello.reservation();
  if (!hello.has_reservation()) return nullptr;
  for (const auto& [id, member] : cluster_.members().all()) {
    const v1::Reservation& other = member.record.reservation();
    const bool same_program = member.connected() && member.record.has_reservation() &&
                              other.program() == reservation.program() &&
                              member.record.incarnation() != hello.incarnation();
    if (same_program &&
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
  if (!left.has_reservation() || left.reservation().ranks() == 1) return;
  const bool serves = std::any_of(runs_.begin(), runs_.end(), [&](const auto& entry) {
    return entry.second.live() && entry.second.IsReserved(left.reservation());
  });
  if (!serves) return;  // the run has ended, and its ranks leave
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

void Machine::NoteEnded(const std::string& program, const std::string& reason) {
  if (ended_programs_.size() >= kMaxEndedPrograms) ended_programs_.erase(ended_programs_.begin());
  ended_programs_.emplace(program, reason);
}

void Machine::EndProgram(const std::string& program, const std::string& reason) {
  NoteEnded(program, reason);
  for (const auto& [id, member] : cluster_.members().all()) {
    if (member.record.reservation().program() == program) {
      SendIfEnded(*cluster_.members().Find(id));
    }
  }
}

void Machine::SendIfEnded(Member& worker) {
  const Run* run = nullptr;
  for (const auto& [number, one] : runs_) {
    if (!one.IsReserved(worker.record.reservation())) continue;
    run = &one;
    if (one.live()) break;
  }
  if (run == nullptr) return;
  const auto ended = ended_programs_.find(worker.record.reservation().program());
  if (!run->live()) {
    run->SendRunEnded(worker);
  } else if (ended != ended_programs_.end()) {
    cluster_.SetProgramEnded(worker, ended->second);
    run->SendEnded(worker, /*done=*/false, ended->second);
  }
}

}  // namespace cadre
