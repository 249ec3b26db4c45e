#include "coordinator/sqlite_store.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"

namespace cadre {
namespace {

// Layout of the file; a change adds a step to Migrate.
constexpr int kLayout = 1;

absl::StatusCode CodeOf(int error) {
  switch (error & 0xff) {
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kFailedPrecondition;
    case SQLITE_CANTOPEN:
      return absl::StatusCode::kNotFound;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

absl::string_view Advice(int error) {
  switch (error & 0xff) {
    case SQLITE_FULL:
      return "; the disk is full: make room and start again, nothing is lost";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "; another process, perhaps another coordinator, holds it";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "; it is damaged or not a store of Cadre's: restore it or choose another file";
    case SQLITE_CANTOPEN:
      return "; is there such a folder, and may this user write in it?";
    case SQLITE_READONLY:
      return "; this user may not write it";
    default:
      return "";
  }
}

// The smallest key above all keys with this prefix; empty: there is none.
std::string Above(absl::string_view prefix) {
  std::string above(prefix);
  while (!above.empty() && static_cast<unsigned char>(above.back()) == 0xff) above.pop_back();
  if (!above.empty()) ++above.back();
  return above;
}

void BindText(sqlite3_stmt* statement, int index, absl::string_view text) {
  sqlite3_bind_text64(statement, index, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
}

void BindBlob(sqlite3_stmt* statement, int index, absl::string_view bytes) {
  // A null pointer would bind NULL.
  sqlite3_bind_blob64(statement, index, bytes.empty() ? "" : bytes.data(), bytes.size(),
                      SQLITE_TRANSIENT);
}

std::string Column(sqlite3_stmt* statement, int index) {
  const void* const bytes = sqlite3_column_blob(statement, index);
  const int size = sqlite3_column_bytes(statement, index);
  return size == 0 ? "" : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

}  // namespace

void SqliteStore::CloseDatabase::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

void SqliteStore::FinalizeStatement::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteStore::SqliteStore(std::string path, std::unique_ptr<sqlite3, CloseDatabase> database)
    : path_(std::move(path)), database_(std::move(database)) {}

SqliteStore::~SqliteStore() = default;

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const Options& options) {
  sqlite3* database = nullptr;
  const int opened =
      sqlite3_open_v2(options.path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  // SQLite hands out an object to ask for the error even when it fails.
  auto store = std::unique_ptr<SqliteStore>(
      new SqliteStore(options.path, std::unique_ptr<sqlite3, CloseDatabase>(database)));
  if (opened != SQLITE_OK) return store->Error("cannot be opened");
  CADRE_RETURN_IF_ERROR(store->Configure(options));
  CADRE_RETURN_IF_ERROR(store->CheckIntegrity());
  CADRE_RETURN_IF_ERROR(store->Migrate());
  return store;
}

absl::Status SqliteStore::Configure(const Options& options) {
  sqlite3_extended_result_codes(database_.get(), 1);
  sqlite3_busy_timeout(database_.get(),
                       static_cast<int>(absl::ToInt64Milliseconds(options.busy_timeout)));
  CADRE_RETURN_IF_ERROR(Execute("PRAGMA locking_mode = EXCLUSIVE"));
  CADRE_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  CADRE_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  if (options.max_pages > 0) {
    CADRE_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count = ", options.max_pages)));
  }
  // Takes the exclusive lock now rather than at the first change.
  return Execute("BEGIN IMMEDIATE; COMMIT");
}

absl::Status SqliteStore::CheckIntegrity() {
  CADRE_ASSIGN_OR_RETURN(const std::string result, QueryText("PRAGMA integrity_check(1)"));
  if (result == "ok") return absl::OkStatus();
  // One line, whatever SQLite found.
  return absl::DataLossError(absl::StrCat(
      "store ", path_, ": ", absl::StrReplaceAll(result, {{"\n", " "}}), Advice(SQLITE_CORRUPT)));
}

absl::Status SqliteStore::Migrate() {
  CADRE_ASSIGN_OR_RETURN(const std::string text, QueryText("PRAGMA user_version"));
  int layout = 0;
  if (!absl::SimpleAtoi(text, &layout)) {
    return absl::DataLossError(absl::StrCat("store ", path_, ": it has no layout number"));
  }
  if (layout == kLayout) return absl::OkStatus();
  if (layout > kLayout) {
    return absl::FailedPreconditionError(absl::StrCat("store ", path_, ": layout ", layout,
                                                      " was made by a newer Cadre; this one knows ",
                                                      kLayout));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string tables, QueryText("SELECT count(*) FROM sqlite_master"));
  if (tables != "0") {
    return absl::DataLossError(
        absl::StrCat("store ", path_, ": is a database of something else; choose another file"));
  }
  return Execute(
      "BEGIN IMMEDIATE;"
      "CREATE TABLE record (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;"
      "PRAGMA user_version = 1;"
      "COMMIT");
}

absl::Status SqliteStore::Execute(const std::string& sql) {
  if (sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return Error("failed");
}

absl::StatusOr<std::string> SqliteStore::QueryText(const std::string& sql) {
  CADRE_ASSIGN_OR_RETURN(const Statement statement, Prepare(sql));
  if (sqlite3_step(statement.get()) != SQLITE_ROW) return Error("cannot be read");
  return Column(statement.get(), 0);
}

absl::StatusOr<SqliteStore::Statement> SqliteStore::Prepare(absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql.data(), static_cast<int>(sql.size()), &statement,
                         nullptr) != SQLITE_OK) {
    return Error("cannot be read");
  }
  return Statement(statement);
}

absl::StatusOr<std::optional<std::string>> SqliteStore::Get(absl::string_view key) {
  CADRE_ASSIGN_OR_RETURN(const Statement statement,
                         Prepare("SELECT value FROM record WHERE key = ?"));
  BindText(statement.get(), 1, key);
  switch (sqlite3_step(statement.get())) {
    case SQLITE_ROW:
      return std::optional<std::string>(Column(statement.get(), 0));
    case SQLITE_DONE:
      return std::optional<std::string>();
    default:
      return Error("cannot be read");
  }
}

absl::StatusOr<std::map<std::string, std::string>> SqliteStore::Scan(absl::string_view prefix) {
  const std::string above = Above(prefix);
  CADRE_ASSIGN_OR_RETURN(
      const Statement statement,
      Prepare(above.empty() ? "SELECT key, value FROM record WHERE key >= ?"
                            : "SELECT key, value FROM record WHERE key >= ? AND key < ?"));
  BindText(statement.get(), 1, prefix);
  if (!above.empty()) BindText(statement.get(), 2, above);
  std::map<std::string, std::string> records;
  int step = SQLITE_ROW;
  while ((step = sqlite3_step(statement.get())) == SQLITE_ROW) {
    records[Column(statement.get(), 0)] = Column(statement.get(), 1);
  }
  if (step != SQLITE_DONE) return Error("cannot be read");
  return records;
}

absl::Status SqliteStore::Txn(const std::vector<Compare>& compares, const std::vector<Op>& ops) {
  CADRE_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status = ApplyAll(compares, ops);
  if (status.ok()) status = Execute("COMMIT");
  // An error inside a transaction may have ended it already; then there is nothing to roll back.
  if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
    Execute("ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status SqliteStore::ApplyAll(const std::vector<Compare>& compares,
                                   const std::vector<Op>& ops) {
  for (const Compare& compare : compares) {
    CADRE_ASSIGN_OR_RETURN(const std::optional<std::string> value, Get(compare.key));
    if (value != compare.value) {
      return absl::AbortedError(
          absl::StrCat("store ", path_, ": '", compare.key, "' is not what it was expected to be"));
    }
  }
  for (const Op& op : ops) CADRE_RETURN_IF_ERROR(Apply(op));
  return absl::OkStatus();
}

absl::Status SqliteStore::Apply(const Op& op) {
  const std::string above = Above(op.key);
  absl::string_view sql;
  switch (op.kind) {
    case Op::Kind::kPut:
      sql = "INSERT OR REPLACE INTO record (key, value) VALUES (?, ?)";
      break;
    case Op::Kind::kErase:
      sql = "DELETE FROM record WHERE key = ?";
      break;
    case Op::Kind::kErasePrefix:
      sql = above.empty() ? "DELETE FROM record WHERE key >= ?"
                          : "DELETE FROM record WHERE key >= ? AND key < ?";
      break;
  }
  CADRE_ASSIGN_OR_RETURN(const Statement statement, Prepare(sql));
  BindText(statement.get(), 1, op.key);
  if (op.kind == Op::Kind::kPut) BindBlob(statement.get(), 2, op.value);
  if (op.kind == Op::Kind::kErasePrefix && !above.empty()) BindText(statement.get(), 2, above);
  return sqlite3_step(statement.get()) == SQLITE_DONE ? absl::OkStatus()
                                                      : Error("cannot be written");
}

absl::Status SqliteStore::Error(absl::string_view what) const {
  const int error = sqlite3_extended_errcode(database_.get());
  return absl::Status(CodeOf(error), absl::StrCat("store ", path_, ": ", what, ": ",
                                                  sqlite3_errmsg(database_.get()), " (", error, ")",
                                                  Advice(error)));
}

}  // namespace cadre
