// A Store in a PostgreSQL database that several coordinators share, of which one leads.
//
// BeginEpoch takes the lead: the term that it begins is the epoch. Every transaction checks the
// term, so a coordinator that was replaced, even while it was paused, commits nothing any more.
// When the connection ends during a transaction, it is resolved on a new one whether the
// transaction was carried out; it is carried out once.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "coordinator/store/postgres_connection.h"
#include "coordinator/store/store.h"

namespace cadre {

class PostgresStore final : public Store {
 public:
  struct Options {
    // As in PostgresConnection::Connect.
    std::string url;
    // As in LeaderRow, and in the row.
    std::string instance;
    std::string address;
    // How long a call tries to reach the database again.
    absl::Duration patience = absl::Seconds(5);
  };

  // Connects, once, and creates the tables if the database has none. Errors: those of
  // PostgresConnection; FailedPrecondition for tables that a newer Cadre has made.
  static absl::StatusOr<std::unique_ptr<PostgresStore>> Open(Options options);

  // The term and the beat of the leader that BeginEpoch replaces, as read from the row.
  void Replace(uint64_t term, uint64_t beat) {
    term_ = term;
    beat_ = beat;
  }

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override;
  absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) override;
  // Errors also: Aborted if another coordinator leads.
  absl::Status Commit(const std::vector<Op>& ops) override;
  // Takes the lead from the term that Replace has named, or from the own one. Errors also: Aborted
  // if another coordinator has taken it, or the leader has changed the row since it was read.
  absl::StatusOr<uint64_t> BeginEpoch(uint64_t above, absl::Time now) override;
  // The copy is the file of an SqliteStore.
  absl::Status CopyTo(const std::string& path) override;

  // "database NAME at HOST:PORT".
  const std::string& name() const { return name_; }

 private:
  using Rows = std::vector<PostgresConnection::Row>;

  explicit PostgresStore(Options options) : options_(std::move(options)) {}

  absl::Status Connect();
  absl::Status CreateTables(PostgresConnection& connection);
  // Calls `run` with a connection, again with a new one after errors that pass, within the
  // patience.
  absl::StatusOr<Rows> Retry(absl::FunctionRef<absl::StatusOr<Rows>(PostgresConnection&)> run);
  // Why a transaction of this term and number has changed nothing. OK: it was carried out before.
  absl::Status ExplainUnchanged(PostgresConnection& connection);

  const Options options_;
  std::string name_;
  std::unique_ptr<PostgresConnection> connection_;
  // The own term after BeginEpoch, and the number of its last transaction.
  uint64_t term_ = 0;
  // The beat of the leader that is replaced.
  uint64_t beat_ = 0;
  uint64_t sequence_ = 0;
};

}  // namespace cadre
