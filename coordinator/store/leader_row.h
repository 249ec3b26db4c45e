// The row of a shared database that says which coordinator leads, and how standbys decide from it
// that the leader is gone.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/store/postgres_connection.h"

namespace cadre {

// How often the leader changes the row, and a standby reads it. A leader that has not changed it
// for kLeaderTimeout, as a standby has seen it, is replaced. One that could not change it for
// kLeaderPatience gives up the lead: the others may reach the database.
inline constexpr absl::Duration kBeatEvery = absl::Milliseconds(300);
inline constexpr absl::Duration kLeaderTimeout = absl::Milliseconds(1500);
inline constexpr absl::Duration kLeaderPatience = absl::Seconds(5);

struct Leader {
  // Increases with each change of the leader.
  uint64_t term = 0;
  // Increases while the leader runs.
  uint64_t beat = 0;
  // The leader's process, and the address at which members reach it. Empty: it has ended.
  std::string instance;
  std::string address;
};

// "the coordinator at HOST:PORT leads since term N", or that none does.
std::string LeaderText(const Leader& leader);

// Decides for a standby whether the leader is gone, by the standby's clock: clocks of hosts are not
// compared. Pure.
class LeaderWatch {
 public:
  // The row was read between `begin` and `end`. Returns whether the leader is gone. A pause of the
  // standby, or a slow database, between the two counts as no time without a beat.
  bool OnRead(const Leader& leader, absl::Time begin, absl::Time end) {
    if (leader.instance.empty()) return true;
    if (!seen_ || leader.term != term_ || leader.beat != beat_) since_ = end;
    seen_ = true;
    term_ = leader.term;
    beat_ = leader.beat;
    return begin - since_ >= kLeaderTimeout;
  }
  // The row could not be read: nor could the leader change it, perhaps.
  void OnUnreadable() { seen_ = false; }

 private:
  // Whether the row was read last, what it had, and since when.
  bool seen_ = false;
  uint64_t term_ = 0;
  uint64_t beat_ = 0;
  absl::Time since_;
};

// A connection for the row, beside that of the store, so that long transactions delay no beat.
class LeaderRow {
 public:
  // `instance`: identifies the process.
  LeaderRow(std::string url, std::string instance)
      : url_(std::move(url)), instance_(std::move(instance)) {}

  // Errors of all: those of PostgresConnection. Requires: a PostgresStore was opened.
  absl::StatusOr<Leader> Read();
  // The leader runs. Errors: Aborted if this process does not lead any more.
  absl::Status Beat();
  // Ends the lead, so that a standby takes it over immediately. Does nothing if another one leads.
  absl::Status Release();

 private:
  absl::StatusOr<PostgresConnection*> Connected();

  const std::string url_;
  const std::string instance_;
  std::unique_ptr<PostgresConnection> connection_;
};

}  // namespace cadre
