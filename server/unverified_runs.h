// The runs whose files an aggregator has not read since it started: what the heads of their
// versions say, and how much was read. A head may say more than is true: if a block of a version
// is damaged, the run has an earlier version, or none, when its files are verified.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/ledger.h"
#include "server/ledger_values.h"

namespace cadre {

class UnverifiedRuns {
 public:
  struct Progress {
    // Bytes that were read, of those to read.
    uint64_t read = 0;
    uint64_t bytes = 0;

    // "3 of 8 bytes of its files are verified".
    std::string Text() const;
  };

  // `versions`: as their heads describe them.
  void Add(const RunTerms& terms, const std::vector<StoredVersion>& versions, uint64_t bytes);
  void Erase(const std::string& run);
  // Blocks were read. Ignores other runs.
  void OnRead(const std::string& run, uint64_t bytes);
  // The files will be read from the beginning.
  void BeginAgain(const std::string& run);

  // Unavailable, with the progress, if the run is one of these.
  absl::Status Check(const std::string& run) const;
  // By run.
  const std::map<std::string, Progress>& all() const { return runs_; }
  // Runs, versions and generations as in the ledger of a host; no contributions.
  const Ledger& heads() const { return heads_; }

 private:
  Ledger heads_;
  std::map<std::string, Progress> runs_;
};

}  // namespace cadre
