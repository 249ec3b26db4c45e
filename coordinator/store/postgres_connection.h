// A connection to a PostgreSQL database. Every wait has a limit, except for the resolution of the
// host's name, which the resolver limits. The server limits statements as well, so one that the
// client has given up does not wait for a lock, or change anything, for long.
//
// Thread-compatible. No text that it returns contains the password.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

struct pg_conn;
struct pg_result;

namespace cadre {

// Whether the text is the address of a PostgreSQL database: postgresql://... or postgres://...
bool IsPostgresUrl(absl::string_view text);

class PostgresConnection {
 public:
  // A parameter of a statement: a text, or an array in PostgreSQL's binary format.
  struct Param {
    std::string bytes;
    bool binary = false;
  };
  static Param Text(absl::string_view text) { return {std::string(text)}; }
  static Param Number(uint64_t number) { return {std::to_string(number)}; }
  // text[] and bytea[].
  static Param TextArray(const std::vector<std::string>& values);
  static Param BytesArray(const std::vector<std::string>& values);

  using Row = std::vector<std::string>;
  // SQL with its name in errors.
  struct Statement {
    const char* name;
    const char* sql;
  };

  // `url`: as for libpq; the environment and ~/.pgpass complete it. `timeout`: limit of this call,
  // of which each of several hosts that are left has an equal part. Errors, with the database and,
  // if there is one, a remedy: InvalidArgument for a malformed URL; Unavailable if a host may be
  // reached later; otherwise PermissionDenied, NotFound or FailedPrecondition if the database
  // refuses the user or does not exist, a file of credentials is missing, or the server does not
  // offer the TLS that the URL demands.
  static absl::StatusOr<std::unique_ptr<PostgresConnection>> Connect(const std::string& url,
                                                                     absl::Duration timeout);
  ~PostgresConnection();

  // Runs one statement, which is a transaction. Its columns must be texts or bytea. Errors:
  // Unavailable if it may succeed later, perhaps after a new connection (the statement may have
  // been carried out if the connection has ended); ResourceExhausted on a full disk;
  // PermissionDenied; FailedPrecondition for a database that is read-only or lacks a table;
  // Internal.
  absl::StatusOr<std::vector<Row>> Run(const Statement& statement, const std::vector<Param>& params,
                                       absl::Duration timeout);
  // Runs several statements without parameters, which are one transaction. Errors: as Run.
  absl::Status RunAll(const Statement& statements, absl::Duration timeout);

  // Whether the connection has ended.
  bool ended() const;
  // "database NAME at HOST:PORT".
  const std::string& name() const { return name_; }

 private:
  struct Finish {
    void operator()(pg_conn* connection) const;
  };
  struct Clear {
    void operator()(pg_result* result) const;
  };
  using Result = std::unique_ptr<pg_result, Clear>;

  // One of the hosts of a URL, and its port. Empty: what the URL says.
  struct Host {
    std::string name;
    std::string address;
    std::string port;
  };

  PostgresConnection() = default;

  static absl::StatusOr<std::vector<Host>> HostsOf(const std::string& url);
  // `unacknowledged`: how long the connection may wait for an acknowledgement of TCP.
  static absl::StatusOr<std::unique_ptr<PostgresConnection>> ConnectTo(
      const std::string& url, const Host& host, absl::Duration unacknowledged, absl::Time until);
  absl::Status FinishConnecting(absl::Time until);
  void SetName();
  // Limits the statements that follow on the server.
  absl::Status LimitStatements(absl::Duration timeout, absl::Time until);
  // The last result of the statements that were sent, or the first error.
  absl::StatusOr<Result> Await(absl::Time until, const char* name);
  // Waits until the connection can be read or, if `write`, written.
  absl::Status Wait(bool write, absl::Time until, absl::string_view what);
  absl::Status Error(const pg_result* result) const;

  const SteadyClock clock_;
  std::unique_ptr<pg_conn, Finish> connection_;
  std::string name_ = "the database";
  // The server's limit of statements.
  absl::Duration limit_ = absl::InfiniteDuration();
};

}  // namespace cadre
