// A coordinator that shares its database with others, of which one leads: waits as a standby until
// the leader is gone, takes the lead, and gives it up when it cannot hold it. README.md of this
// folder has the rules.
//
// Called on the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/service.h"
#include "coordinator/store/leader_row.h"
#include "coordinator/store/postgres_store.h"

namespace cadre {

class Failover {
 public:
  struct Options {
    // As in PostgresConnection::Connect.
    std::string url;
    // Where members reach this coordinator.
    std::string address;
    // A file for a backup while it is sent.
    std::string backup_path;
    // Called when the coordinator has read the row of the leader, or has failed to: only one that
    // reads it can take the lead.
    std::function<void(bool read)> on_read;
    // Waits this long at most. Returns whether the process has to end.
    std::function<bool(absl::Duration)> wait;
  };

  // Borrows the service, which must outlive the object.
  Failover(Options options, CoordinatorService& service);

  // Connects, and creates the tables if necessary. Returns false if the process has to end. Errors:
  // those of PostgresStore::Open.
  absl::StatusOr<bool> Open();
  // Waits and leads until the process has to end. The service then still serves if it leads.
  // Errors: those of the store that a new start would not pass.
  absl::Status Run();
  // Hands the lead over if this coordinator has it, after the service has stopped.
  void Release();

 private:
  // Returns whether the leader is gone; otherwise the process has to end.
  absl::StatusOr<bool> AwaitLead();
  // Leads until another coordinator does, the database is not reached, or the process has to end.
  absl::Status Lead();
  // Starts the service, and beats meanwhile. Returns false if the process has to end.
  absl::StatusOr<bool> Start();
  // Returns why the lead ends; OK: the process has to end.
  absl::Status HoldLead();
  // Whether another coordinator has led since this one has read the row as a standby.
  bool IsReplaced();

  const Options options_;
  const std::string instance_;
  CoordinatorService& service_;
  LeaderRow row_;
  std::unique_ptr<PostgresStore> store_;
  // The term after which this coordinator leads, or tries to.
  uint64_t replaced_term_ = 0;
};

}  // namespace cadre
