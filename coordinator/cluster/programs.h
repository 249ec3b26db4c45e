// Programs with a training loop of their own (v1::Reservation): those that have ended, and the
// ranks that others wait for.
//
// A group of a program needs all of its ranks. One that is missing has not joined yet, has lost its
// stream, or is lost: its lease has expired. A lost rank may return, since its process may have
// been suspended or cut off, but only until a limit. It is stored, so that a restarted coordinator
// can still name it; the limits then begin again, as leases do.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/events/outbox.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Number of programs that have ended, and of lost ranks, that are remembered: the newest ones.
inline constexpr size_t kMaxEndedPrograms = 1000;
inline constexpr size_t kMaxLostRanks = 1000;

class Programs {
 public:
  // Borrows `members`, which must outlive the object.
  explicit Programs(const Membership& members) : members_(members) {}

  // ---- Programs whose ranks will not form a group again
  // The first reason is kept.
  void NoteEnded(const std::string& program, const std::string& reason);
  // Why the program has ended; null if it has not.
  const std::string* ReasonOfEnd(const std::string& program) const;

  // ---- Lost ranks
  struct LostRank {
    v1::LostRankRecord record;
    // When the program ends unless the rank has returned; InfiniteFuture: when no rank waits.
    absl::Time until;
  };
  void Load(const v1::LostRankRecord& record, absl::Time until);
  // The lease of this rank has expired.
  void AddLost(const Member& member, absl::Time until, Outbox& out);
  // A process has joined as this rank. The other lost ranks of its program have time until
  // `until` at least.
  void OnJoined(const v1::Reservation& reservation, absl::Time until, Outbox& out);
  // The ranks whose limits have passed.
  std::vector<LostRank> Due(absl::Time now) const;
  // Sets the limit of every lost rank.
  void SetLimits(absl::FunctionRef<absl::Time(const v1::Reservation&)> limit);
  // Changes the limit of all lost ranks of the program.
  void SetLimit(const std::string& program, absl::Time until);
  // Forgets all lost ranks of the program.
  void Forget(const std::string& program, Outbox& out);
  absl::Time NextDeadline() const;

  // ---- Texts
  // Names the ranks of the program that are not connected, with what is known of their processes;
  // empty if there are none.
  std::string MissingRanks(const v1::Reservation& reservation) const;
  // "rank 1 ('name' on host, no message since ...)", for a rank that is lost or a member.
  static std::string Describe(const LostRank& lost);
  static std::string Describe(uint32_t rank, const Member& member);

 private:
  // By program and rank.
  using Lost = std::map<std::pair<std::string, uint32_t>, LostRank>;
  // The lost ranks of one program.
  std::pair<Lost::const_iterator, Lost::const_iterator> LostOf(const std::string& program) const;
  // Removes the entry, also from the store.
  Lost::iterator Erase(Lost::const_iterator entry, Outbox& out);

  const Membership& members_;
  std::map<std::string, std::string> ended_;
  // The keys of ended_, oldest first.
  std::deque<std::string> ended_order_;
  Lost lost_;
};

}  // namespace cadre
