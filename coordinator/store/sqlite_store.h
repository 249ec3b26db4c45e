// A Store in one SQLite file, with a write-ahead log; every transaction is synced to disk.
//
// The file is locked exclusively: a second coordinator on the same file is refused, and a killed
// one leaves no lock. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/store/store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace cadre {

class SqliteStore final : public Store {
 public:
  struct Options {
    // The file; created if missing, but not its folder.
    std::string path;
    // How long to wait for another process that has locked the file.
    absl::Duration busy_timeout = absl::Seconds(5);
    // Limit of the file size in pages of 4 KiB; 0: no limit.
    int64_t max_pages = 0;
  };

  // Opens, checks and if necessary initialises the file. Errors, in one line with the path:
  // PermissionDenied or NotFound if it cannot be opened, ResourceExhausted on a full disk, DataLoss
  // if it is corrupt or not a store, FailedPrecondition if another process has locked it or a newer
  // Cadre has written it.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const Options& options);
  ~SqliteStore() override;

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override;
  absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) override;
  absl::Status Commit(const std::vector<Op>& ops) override;
  // With SQLite's backup interface; the file must not exist. Readable by its owner only. Not
  // synced.
  absl::Status CopyTo(const std::string& path) override;

 private:
  struct CloseDatabase {
    void operator()(sqlite3* database) const;
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

  SqliteStore(std::string path, std::unique_ptr<sqlite3, CloseDatabase> database);

  absl::Status Configure(const Options& options);
  absl::Status CheckIntegrity();
  absl::Status Migrate();
  absl::Status CheckRecords();
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<std::string> QueryText(const std::string& sql);
  absl::StatusOr<Statement> Prepare(absl::string_view sql);
  absl::Status Apply(const Op& op);
  absl::Status ApplyAll(const std::vector<Op>& ops);
  // Status of SQLite's last error.
  absl::Status Error(absl::string_view what) const;

  const std::string path_;
  const std::unique_ptr<sqlite3, CloseDatabase> database_;
};

}  // namespace cadre
