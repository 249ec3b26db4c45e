// The ranks of programs with a training loop of their own (v1::Reservation): what they wait for,
// and what ends them.
//
// The ranks of a program are started together and wait for each other, so a rank that will not come
// back ends all of them: it has left, or what it sent was refused and would be refused again, or
// its lease has expired and it has not returned within a limit, while others waited for it. A rank
// that is disconnected at that time learns it when it returns, also from a coordinator that was
// restarted meanwhile, and so does one that joins only then.
//
// Pure and thread-compatible.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/runs.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class ReservedRanks {
 public:
  // Both are borrowed and must outlive the object.
  ReservedRanks(Cluster& cluster, Runs& runs) : cluster_(cluster), runs_(runs) {}

  // Refuses a process whose rank another connected process has, or which has another number of
  // ranks. Returns whether it has.
  bool Refuse(ConnectionId connection, const v1::Hello& hello);
  // `known`: the same process was registered before.
  void OnJoined(Member& rank, bool known);
  // The member, which was removed because its lease has expired, may be a rank of a program.
  void OnLost(const Member& member);

  // Send to ranks of a program that are not in a group what they wait for, if that has changed: to
  // all which ranks are missing, or to one what its run waits for.
  void SendMissingRanks(const std::string& program);
  void SendReasonOfRun(Member& rank);

  // The ranks of this program will not form a group again: sends RunEnded to those that are
  // connected, and to the others when they join.
  void End(const std::string& program, const std::string& reason);
  // Ends the programs whose ranks have waited for a lost one until its limit.
  void EndIncomplete();
  // The limits of all lost ranks begin again.
  void RenewLimits();

 private:
  const Member* OtherOfRank(const v1::Hello& hello) const;
  // `missing`: the ranks that are missing; empty if there are none.
  void SendWaiting(Member& rank, const std::string& missing);
  // Sends RunEnded to a rank whose run or program has ended: it waits in vain.
  void SendIfEnded(Member& worker);
  // Until when the other ranks of a program wait for one that is lost now.
  absl::Time ReturnLimit(const v1::Reservation& reservation);

  Cluster& cluster_;
  Runs& runs_;
};

}  // namespace cadre
