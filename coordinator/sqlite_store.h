// The store in one SQLite file: write-ahead log, every transaction synced to the disk.
//
// The file is held exclusively: a second coordinator on the same file is refused, and a killed one
// leaves no lock behind. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace cadre {

class SqliteStore final : public Store {
 public:
  struct Options {
    // The file; made if it is not there, its folder must be.
    std::string path;
    // How long to wait for another process that holds the file.
    absl::Duration busy_timeout = absl::Seconds(5);
    // Most pages (4 KiB) that the file may have; 0: as many as fit on the disk.
    int64_t max_pages = 0;
  };

  // Opens, checks and, if need be, migrates the file.
  // Errors, in one line with the path: PermissionDenied or NotFound when it cannot be opened,
  // ResourceExhausted on a full disk, DataLoss when it is damaged or no store, FailedPrecondition
  // when another process holds it or a newer Cadre made it.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const Options& options);
  ~SqliteStore() override;

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override;
  absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) override;
  absl::Status Txn(const std::vector<Compare>& compares, const std::vector<Op>& ops) override;

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
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<std::string> QueryText(const std::string& sql);
  absl::StatusOr<Statement> Prepare(absl::string_view sql);
  absl::Status Apply(const Op& op);
  absl::Status ApplyAll(const std::vector<Compare>& compares, const std::vector<Op>& ops);
  // The status of what SQLite said last.
  absl::Status Error(absl::string_view what) const;

  const std::string path_;
  const std::unique_ptr<sqlite3, CloseDatabase> database_;
};

}  // namespace cadre
