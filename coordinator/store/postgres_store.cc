// Two tables. `cadre_record` has the records. `cadre_leader` has one row: the version of the
// tables, the term and the process of the leader, the number of its last transaction in the term,
// and a number that changes while it runs (leader_row.h).
//
// A transaction is one statement: it increases the number of the last transaction where term and
// number are the expected ones, and changes records only if that has changed the row. The row's
// lock orders the transactions of all coordinators, and a statement that has waited for the lock
// checks the row again (READ COMMITTED). So
//
//   - a coordinator of an earlier term changes nothing;
//   - a transaction whose answer is lost is sent again, with its number: one of the two changes the
//     row, whichever the server executes first, and the other one nothing.
//
// A statement is executed only when the server has received all of it, so a process that is stopped
// holds no lock. Server and client limit its time, so one whose answer is lost ends soon.
//
// Other databases than PostgreSQL do if they have its protocol, INSERT ... ON CONFLICT, changes in
// WITH, and READ COMMITTED transactions that survive a failure of the server.
#include "coordinator/store/postgres_store.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/leader_row.h"
#include "coordinator/store/sqlite_store.h"

namespace cadre {
namespace {

using Connection = PostgresConnection;

// Version of the tables, in cadre_leader.
constexpr char kVersionOfTables[] = "1";
// Limit of a statement, and of one that reads all records.
constexpr absl::Duration kStatementTimeout = absl::Seconds(5);
constexpr absl::Duration kScanTimeout = absl::Minutes(1);
// Between attempts to reach the database.
constexpr absl::Duration kReconnect = absl::Milliseconds(100);

// Coordinators that start together create the tables one after the other.
constexpr Connection::Statement kCreate = {"create the tables", R"(
  SELECT pg_advisory_xact_lock(7165433321);
  CREATE TABLE IF NOT EXISTS cadre_record (
    key text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL);
  CREATE TABLE IF NOT EXISTS cadre_leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL,
    term bigint NOT NULL,
    sequence bigint NOT NULL,
    beat bigint NOT NULL,
    instance text NOT NULL,
    address text NOT NULL);
  INSERT INTO cadre_leader VALUES (true, 1, 0, 0, 0, '', '') ON CONFLICT DO NOTHING;)"};

constexpr Connection::Statement kExists = {
    "look for the tables",
    "SELECT count(*)::text FROM pg_tables WHERE tablename = 'cadre_leader' "
    "AND schemaname = ANY (current_schemas(false))"};

// A standby takes the lead only if the leader has not beaten since ($5). The leader itself, which
// may begin a further term, beats meanwhile.
constexpr Connection::Statement kTakeLead = {
    "take the lead",
    "UPDATE cadre_leader SET term = GREATEST(term, $2::bigint) + 1, sequence = 0, beat = beat + 1, "
    "instance = $3::text, address = $4::text WHERE term = $1::bigint "
    "AND (beat = $5::bigint OR instance = $3::text) RETURNING term::text"};

// The own term above $2, if an earlier statement of this process took the lead and its answer was
// lost.
constexpr Connection::Statement kOwnTerm = {
    "look for the lead",
    "SELECT term::text FROM cadre_leader WHERE instance = $1::text AND term > $2::bigint "
    "AND sequence = 0"};

// $3 and $4: ranges of keys that are erased, except for the keys in $5, which are written.
constexpr Connection::Statement kCommit = {"commit", R"(
  WITH lead AS (
    UPDATE cadre_leader SET sequence = $2::bigint
    WHERE term = $1::bigint AND sequence = $2::bigint - 1 RETURNING 1),
  erased AS (
    DELETE FROM cadre_record AS record USING unnest($3::text[], $4::text[]) AS range (low, high)
    WHERE EXISTS (SELECT FROM lead) AND record.key >= range.low AND record.key < range.high
      AND record.key <> ALL ($5::text[])),
  put AS (
    INSERT INTO cadre_record SELECT key, value
    FROM unnest($5::text[], $6::bytea[]) AS written (key, value) WHERE EXISTS (SELECT FROM lead)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value)
  SELECT count(*)::text FROM lead)"};

// What a transaction does, whatever the order of its operations.
struct Changes {
  std::vector<std::string> low;
  std::vector<std::string> high;
  std::map<std::string, std::string> put;
};

Changes ChangesOf(const std::vector<Store::Op>& ops) {
  Changes changes;
  for (const Store::Op& op : ops) {
    if (op.kind == Store::Op::Kind::kPut) {
      changes.put[op.key] = op.value;
      continue;
    }
    const bool prefix = op.kind == Store::Op::Kind::kErasePrefix;
    // Keys are printable, so none lies between a key and this one.
    const std::string high = prefix ? KeyAbove(op.key) : op.key + '\x01';
    changes.put.erase(changes.put.lower_bound(op.key), changes.put.lower_bound(high));
    changes.low.push_back(op.key);
    changes.high.push_back(high);
  }
  return changes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PostgresStore>> PostgresStore::Open(Options options) {
  auto store = std::unique_ptr<PostgresStore>(new PostgresStore(std::move(options)));
  CADRE_RETURN_IF_ERROR(store->Connect());
  CADRE_RETURN_IF_ERROR(store->CreateTables(*store->connection_));
  return store;
}

absl::Status PostgresStore::CreateTables(Connection& connection) {
  CADRE_ASSIGN_OR_RETURN(const Rows exists, connection.Run(kExists, {}, kStatementTimeout));
  if (exists.empty() || exists[0][0] == "0") {
    LOG(INFO) << connection.name() << ": creating tables";
    CADRE_RETURN_IF_ERROR(connection.RunAll(kCreate, kStatementTimeout));
  }
  CADRE_ASSIGN_OR_RETURN(
      const Rows version,
      connection.Run({"read the version of the tables", "SELECT version::text FROM cadre_leader"},
                     {}, kStatementTimeout));
  if (version.size() == 1 && version[0][0] == kVersionOfTables) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(connection.name(), ": its tables have version ",
                   version.empty() ? "<none>" : version[0][0], ", this program writes version ",
                   kVersionOfTables, "; use the Cadre that made them, or another database"));
}

absl::Status PostgresStore::Connect() {
  CADRE_ASSIGN_OR_RETURN(connection_, Connection::Connect(options_.url, kStatementTimeout));
  name_ = connection_->name();
  return absl::OkStatus();
}

absl::StatusOr<PostgresStore::Rows> PostgresStore::Retry(
    absl::FunctionRef<absl::StatusOr<Rows>(Connection&)> run) {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + options_.patience;
  for (bool first = true;; first = false) {
    absl::Status status;
    if (connection_ == nullptr || connection_->ended()) status = Connect();
    if (status.ok()) {
      absl::StatusOr<Rows> rows = run(*connection_);
      if (rows.ok()) return rows;
      status = rows.status();
    }
    if (!absl::IsUnavailable(status)) return status;
    LOG_IF(WARNING, first) << "tries for " << options_.patience << ": " << status.message();
    if (clock.Now() >= until) return status;
    absl::SleepFor(kReconnect);
  }
}

absl::StatusOr<std::optional<std::string>> PostgresStore::Get(absl::string_view key) {
  CADRE_ASSIGN_OR_RETURN(const Rows rows, Retry([&](Connection& connection) {
                           return connection.Run(
                               {"read", "SELECT value FROM cadre_record WHERE key = $1::text"},
                               {Connection::Text(key)}, kStatementTimeout);
                         }));
  if (rows.empty()) return std::optional<std::string>();
  return rows[0][0];
}

absl::StatusOr<std::map<std::string, std::string>> PostgresStore::Scan(absl::string_view prefix) {
  CADRE_ASSIGN_OR_RETURN(
      Rows rows, Retry([&](Connection& connection) {
        return connection.Run(
            {"scan",
             "SELECT key, value FROM cadre_record WHERE key >= $1::text AND key < $2::text"},
            {Connection::Text(prefix), Connection::Text(KeyAbove(prefix))}, kScanTimeout);
      }));
  std::map<std::string, std::string> records;
  for (Connection::Row& row : rows) records[std::move(row[0])] = std::move(row[1]);
  return records;
}

absl::StatusOr<uint64_t> PostgresStore::BeginEpoch(uint64_t above, absl::Time /*now*/) {
  const auto take = [&](Connection& connection) -> absl::StatusOr<Rows> {
    CADRE_ASSIGN_OR_RETURN(
        Rows taken, connection.Run(kTakeLead,
                                   {Connection::Number(term_), Connection::Number(above),
                                    Connection::Text(options_.instance),
                                    Connection::Text(options_.address), Connection::Number(beat_)},
                                   kStatementTimeout));
    if (!taken.empty()) return taken;
    return connection.Run(
        kOwnTerm, {Connection::Text(options_.instance), Connection::Number(std::max(term_, above))},
        kStatementTimeout);
  };
  CADRE_ASSIGN_OR_RETURN(const Rows rows, Retry(take));
  uint64_t term = 0;
  if (rows.size() != 1 || !absl::SimpleAtoi(rows[0][0], &term)) {
    return absl::AbortedError(absl::StrCat(name_, ": the coordinator of term ", term_,
                                           " leads on, or another coordinator has taken the lead"));
  }
  term_ = term;
  sequence_ = 0;
  return term;
}

absl::Status PostgresStore::Commit(const std::vector<Op>& ops) {
  const Changes changes = ChangesOf(ops);
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (const auto& [key, value] : changes.put) {
    keys.push_back(key);
    values.push_back(value);
  }
  ++sequence_;
  const std::vector<Connection::Param> params = {
      Connection::Number(term_),          Connection::Number(sequence_),
      Connection::TextArray(changes.low), Connection::TextArray(changes.high),
      Connection::TextArray(keys),        Connection::BytesArray(values)};
  const auto commit = [&](Connection& connection) -> absl::StatusOr<Rows> {
    CADRE_ASSIGN_OR_RETURN(Rows rows, connection.Run(kCommit, params, kStatementTimeout));
    if (rows.size() == 1 && rows[0][0] == "1") return rows;
    CADRE_RETURN_IF_ERROR(ExplainUnchanged(connection));
    return rows;
  };
  return Retry(commit).status();
}

absl::Status PostgresStore::ExplainUnchanged(Connection& connection) {
  CADRE_ASSIGN_OR_RETURN(
      const Rows rows,
      connection.Run(
          {"read the leader", "SELECT term::text, sequence::text, address FROM cadre_leader"}, {},
          kStatementTimeout));
  const bool same_term = rows.size() == 1 && rows[0][0] == absl::StrCat(term_);
  if (same_term && rows[0][1] == absl::StrCat(sequence_)) return absl::OkStatus();
  Leader leader;
  if (rows.size() == 1 && !same_term && absl::SimpleAtoi(rows[0][0], &leader.term)) {
    leader.address = rows[0][2];
    return absl::AbortedError(absl::StrCat(connection.name(), ": ", LeaderText(leader),
                                           "; this one, of term ", term_,
                                           ", was replaced and commits nothing"));
  }
  return absl::DataLossError(absl::StrCat(connection.name(), ": table cadre_leader lacks ",
                                          "transactions of term ", term_,
                                          ": was an older copy of the database restored?"));
}

absl::Status PostgresStore::CopyTo(const std::string& path) {
  // One statement reads one state.
  CADRE_ASSIGN_OR_RETURN(
      Rows rows, Retry([](Connection& connection) {
        return connection.Run({"copy", "SELECT key, value FROM cadre_record"}, {}, kScanTimeout);
      }));
  // Not through a link that another user has made.
  const int created = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (created < 0) return ErrnoStatus(errno, "create", path);
  close(created);
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> copy,
                         SqliteStore::Open({.path = path}));
  std::vector<Op> ops;
  ops.reserve(rows.size());
  for (Connection::Row& row : rows) {
    ops.push_back({Op::Kind::kPut, std::move(row[0]), std::move(row[1])});
  }
  return copy->Commit(ops);
}

}  // namespace cadre
