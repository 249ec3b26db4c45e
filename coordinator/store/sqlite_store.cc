// One table `record(key, value, crc)`; the coordinator's state is a few thousand small records,
// read once at the start and then only written. SQLite provides the two properties that the
// Machine's contract requires: a transaction is atomic, and it is durable when COMMIT returns.
//
// Durability: in WAL mode a commit appends to the log; synchronous = FULL makes it fsync the log
// before COMMIT returns (NORMAL would only guarantee consistency after a power failure, and lose
// the newest commits, although Apply messages of a lost commit may have been sent). A commit costs
// one fsync, 0.1 to 10 ms; the Loop batches the events that are waiting into one transaction.
//
// Exclusion: locking_mode = EXCLUSIVE with an immediate transaction at Open locks the file for the
// life of the process. It is an advisory lock of the kernel, so it ends with the process, and a
// second coordinator fails at its start instead of at its first write. In this mode SQLite also
// keeps the WAL index in memory instead of in a shared-memory file.
//
// Errors inside a transaction (a full disk, I/O) leave the file unchanged: SQLite rolls back. The
// Loop then stops, because the Machine's memory is ahead of the store; after a restart the state is
// that of the last commit. Damage is found at Open, not later at a read: by integrity_check and,
// because SQLite does not checksum its pages, by the CRC32C of every record.
//
// Limits: one writer; no compaction. Old commits and old runs are erased, and SQLite uses their
// pages again, so the file stays small.
#include "coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/status.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Layout of the file, in PRAGMA user_version.
constexpr int kLayout = 2;

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

constexpr absl::string_view kDamaged =
    "; it is corrupt or not a Cadre store: restore a copy of it, or move it aside and start with a "
    "new one";

absl::string_view Advice(int error) {
  switch (error & 0xff) {
    case SQLITE_FULL:
      return "; the disk is full: free some space and restart; no data is lost";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "; it is locked by another process, perhaps another coordinator";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return kDamaged;
    case SQLITE_CANTOPEN:
      return "; check that the folder exists and is writable";
    case SQLITE_READONLY:
      return "; it is not writable";
    default:
      return "";
  }
}

void BindText(sqlite3_stmt* statement, int index, absl::string_view text) {
  sqlite3_bind_text64(statement, index, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
}

void BindBlob(sqlite3_stmt* statement, int index, absl::string_view bytes) {
  // A null pointer would bind NULL instead of an empty value.
  sqlite3_bind_blob64(statement, index, bytes.empty() ? "" : bytes.data(), bytes.size(),
                      SQLITE_TRANSIENT);
}

absl::string_view BytesOf(sqlite3_value* value) {
  const auto* const bytes = static_cast<const char*>(sqlite3_value_blob(value));
  return {bytes, static_cast<size_t>(sqlite3_value_bytes(value))};
}

// The SQL function crc32c(key, value).
void ComputeCrc(sqlite3_context* context, int /*count*/, sqlite3_value** values) {
  const std::string record = absl::StrCat(BytesOf(values[0]), BytesOf(values[1]));
  sqlite3_result_int64(context, Crc32c(record));
}

std::string Column(sqlite3_stmt* statement, int index) {
  const void* const bytes = sqlite3_column_blob(statement, index);
  const int size = sqlite3_column_bytes(statement, index);
  return size == 0 ? "" : std::string(static_cast<const char*>(bytes), size);
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
  // SQLite would create a file that other users can read. Its other files get the mode of this one.
  const int fd = open(options.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) {
    // One of an earlier version. If it cannot be changed, it belongs to another user.
    if (fchmod(fd, 0600) != 0) LOG(WARNING) << options.path << ": other users may read it";
    close(fd);
  }
  sqlite3* database = nullptr;
  const int opened =
      sqlite3_open_v2(options.path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  // SQLite returns an object even on failure, from which the error is read.
  auto store = std::unique_ptr<SqliteStore>(
      new SqliteStore(options.path, std::unique_ptr<sqlite3, CloseDatabase>(database)));
  if (opened != SQLITE_OK) return store->Error("cannot be opened");
  CADRE_RETURN_IF_ERROR(store->Configure(options));
  CADRE_RETURN_IF_ERROR(store->CheckIntegrity());
  CADRE_RETURN_IF_ERROR(store->Migrate());
  CADRE_RETURN_IF_ERROR(store->CheckRecords());
  return store;
}

absl::Status SqliteStore::Configure(const Options& options) {
  sqlite3_extended_result_codes(database_.get(), 1);
  if (sqlite3_create_function(database_.get(), "crc32c", 2, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                              nullptr, ComputeCrc, nullptr, nullptr) != SQLITE_OK) {
    return Error("cannot be configured");
  }
  sqlite3_busy_timeout(database_.get(),
                       static_cast<int>(absl::ToInt64Milliseconds(options.busy_timeout)));
  CADRE_RETURN_IF_ERROR(Execute("PRAGMA locking_mode = EXCLUSIVE"));
  CADRE_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  CADRE_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  if (options.max_pages > 0) {
    CADRE_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count = ", options.max_pages)));
  }
  // Takes the exclusive lock now instead of at the first change.
  return Execute("BEGIN IMMEDIATE; COMMIT");
}

absl::Status SqliteStore::CheckIntegrity() {
  CADRE_ASSIGN_OR_RETURN(const std::string result, QueryText("PRAGMA integrity_check(1)"));
  if (result == "ok") return absl::OkStatus();
  // The report may have several lines; the error must have one.
  return absl::DataLossError(
      absl::StrCat("store ", path_, ": ", absl::StrReplaceAll(result, {{"\n", " "}}), kDamaged));
}

absl::Status SqliteStore::CheckRecords() {
  CADRE_ASSIGN_OR_RETURN(
      const Statement statement,
      Prepare("SELECT key FROM record WHERE crc IS NOT crc32c(key, value) LIMIT 1"));
  switch (sqlite3_step(statement.get())) {
    case SQLITE_DONE:
      return absl::OkStatus();
    case SQLITE_ROW:
      return absl::DataLossError(absl::StrCat("store ", path_, ": record '",
                                              absl::CEscape(Column(statement.get(), 0)),
                                              "' is damaged", kDamaged));
    default:
      return Error("cannot be read");
  }
}

absl::Status SqliteStore::Migrate() {
  CADRE_ASSIGN_OR_RETURN(const std::string text, QueryText("PRAGMA user_version"));
  int layout = 0;
  if (!absl::SimpleAtoi(text, &layout)) {
    return absl::DataLossError(absl::StrCat("store ", path_, ": no layout number"));
  }
  if (layout == kLayout) return absl::OkStatus();
  if (layout > kLayout) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path_, ": layout ", layout, " was written by a newer Cadre; this ",
                     "version supports ", kLayout, ": run the newer one, or choose another file"));
  }
  if (layout == 1) {
    return Execute(
        "BEGIN IMMEDIATE;"
        "ALTER TABLE record ADD COLUMN crc INTEGER;"
        "UPDATE record SET crc = crc32c(key, value);"
        "PRAGMA user_version = 2;"
        "COMMIT");
  }
  CADRE_ASSIGN_OR_RETURN(const std::string tables, QueryText("SELECT count(*) FROM sqlite_master"));
  if (tables != "0") {
    return absl::DataLossError(absl::StrCat(
        "store ", path_, ": the database belongs to another program; choose another file"));
  }
  return Execute(
      "BEGIN IMMEDIATE;"
      "CREATE TABLE record (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, crc INTEGER)"
      "  WITHOUT ROWID;"
      "PRAGMA user_version = 2;"
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
  if (sqlite3_prepare_v2(database_.get(), sql.data(), std::ssize(sql), &statement, nullptr) !=
      SQLITE_OK) {
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
  CADRE_ASSIGN_OR_RETURN(const Statement statement,
                         Prepare("SELECT key, value FROM record WHERE key >= ? AND key < ?"));
  BindText(statement.get(), 1, prefix);
  BindText(statement.get(), 2, KeyAbove(prefix));
  std::map<std::string, std::string> records;
  int step = SQLITE_ROW;
  while ((step = sqlite3_step(statement.get())) == SQLITE_ROW) {
    records[Column(statement.get(), 0)] = Column(statement.get(), 1);
  }
  if (step != SQLITE_DONE) return Error("cannot be read");
  return records;
}

absl::Status SqliteStore::Commit(const std::vector<Op>& ops) {
  CADRE_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status = ApplyAll(ops);
  if (status.ok()) status = Execute("COMMIT");
  // Some errors end the transaction; then there is nothing to roll back.
  if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
    Execute("ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status SqliteStore::CopyTo(const std::string& path) {
  // SQLite would create it with other permissions.
  const int created = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (created < 0) return ErrnoStatus(errno, "create", path);
  close(created);
  sqlite3* opened = nullptr;
  const int error = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READWRITE, nullptr);
  const std::unique_ptr<sqlite3, CloseDatabase> copy(opened);
  sqlite3_backup* const backup =
      error == SQLITE_OK ? sqlite3_backup_init(opened, "main", database_.get(), "main") : nullptr;
  // All pages in one step: no transaction comes between.
  if (backup != nullptr) sqlite3_backup_step(backup, -1);
  if (backup != nullptr && sqlite3_backup_finish(backup) == SQLITE_OK) return absl::OkStatus();
  return absl::Status(CodeOf(sqlite3_errcode(opened)),
                      absl::StrCat("cannot write ", path, ": ", sqlite3_errmsg(opened)));
}

absl::Status SqliteStore::ApplyAll(const std::vector<Op>& ops) {
  for (const Op& op : ops) CADRE_RETURN_IF_ERROR(Apply(op));
  return absl::OkStatus();
}

absl::Status SqliteStore::Apply(const Op& op) {
  absl::string_view sql;
  switch (op.kind) {
    case Op::Kind::kPut:
      sql = "INSERT OR REPLACE INTO record (key, value, crc) VALUES (?1, ?2, crc32c(?1, ?2))";
      break;
    case Op::Kind::kErase:
      sql = "DELETE FROM record WHERE key = ?";
      break;
    case Op::Kind::kErasePrefix:
      sql = "DELETE FROM record WHERE key >= ? AND key < ?";
      break;
  }
  CADRE_ASSIGN_OR_RETURN(const Statement statement, Prepare(sql));
  BindText(statement.get(), 1, op.key);
  if (op.kind == Op::Kind::kPut) BindBlob(statement.get(), 2, op.value);
  if (op.kind == Op::Kind::kErasePrefix) BindText(statement.get(), 2, KeyAbove(op.key));
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
