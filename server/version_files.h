// The versions of a store: of each, its values, with the Apply that made it, in a file version-<v>,
// and the states of the outer optimizer in a file outer-<v> (shard_store.h).
//
// Thread-safe, but two threads must not write the same version.
//
// Errors: ResourceExhausted with the path for a full disk, DataLoss with the path for damage.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/block_file.h"
#include "server/data_folder.h"
#include "server/ledger.h"
#include "server/stretches.h"

namespace cadre {

// Whether the error means that durable data was lost: it is damaged or missing.
bool IsLoss(const absl::Status& status);
// Whether it may pass: a full disk, or what another process can continue.
bool IsTransient(const absl::Status& status);

// Whether the version that the order makes has states.
bool HasStates(const v1::Apply& order);

absl::string_view AsText(std::span<const float> values);

// What the head of a file of a version has.
struct VersionHead {
  v1::Apply order;
  uint64_t digest = 0;
  Interval span;
};
// Errors: those of BlockFile::Open; DataLoss if the file is not one of this version.
absl::StatusOr<VersionHead> ReadVersionHead(FileSystem& files, const std::string& path,
                                            uint32_t version);

// The states of a version (model/averaging_state.h).
struct StoredStates {
  // Null: all are zeros.
  std::unique_ptr<VersionReader> reader;
  // The positions, and how many states each has.
  Interval span;
  uint32_t states = 0;

  // The elements of the reader that are the values of a state at these positions, in their order.
  // `rule`: that of the run's rounds. Requires: the span contains the positions; state < states.
  std::vector<Interval> ElementsOf(uint32_t state, const StretchRule& rule,
                                   const std::vector<Interval>& positions) const;
};

class VersionFiles {
 public:
  // Computes the version at the positions of a stretch, on a thread as in ForEachStretch. The
  // values stay valid until the next call for the thread.
  using Compute =
      std::function<absl::StatusOr<std::span<const float>>(int thread, Interval stretch)>;

  // The folder is borrowed.
  explicit VersionFiles(const DataFolder& folder) : folder_(folder) {}

  // Writes a version stretch by stretch and returns its statistics, which are stored with it.
  // `order` made the version; empty for version 0. `append` is called as that of ForEachStretch,
  // `finish` after all values are produced; it returns the statistics, apart from the digest.
  absl::StatusOr<VersionStats> Write(const std::string& run, const v1::Apply& order, Interval span,
                                     const StretchRule& rule, int threads, const Compute& compute,
                                     const StretchWork& append,
                                     const std::function<absl::StatusOr<VersionStats>()>& finish);
  // A temporary file for the states of a version.
  absl::StatusOr<std::unique_ptr<BlockWriter>> CreateStates(const std::string& run,
                                                            uint32_t version, Interval span,
                                                            int states);
  // Makes them durable.
  absl::Status FinishStates(const std::string& run, uint32_t version, Interval span, int states,
                            const VersionStats& stats, BlockWriter& writer);

  // Makes the version of a plan that restores another one, with the states of that one.
  absl::StatusOr<VersionStats> Copy(const ApplyPlan& plan);

  // What is stored of the version and its states; checks all blocks only if `verify`.
  absl::StatusOr<StoredVersion> Check(const std::string& run, uint32_t version, bool verify,
                                      const BlockFile::OnRead& on_read = nullptr) const;
  // Checks the states of the version that `order` made, their blocks only if `verify`, and reads
  // their sums.
  absl::Status CheckStates(const std::string& run, const v1::Apply& order, bool verify,
                           VersionStats* stats, const BlockFile::OnRead& on_read = nullptr) const;
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenFile(const std::string& run, uint32_t version,
                                                      v1::Apply* order, Interval* span) const;
  // `order`, if not null, receives the order that made the version.
  absl::StatusOr<std::unique_ptr<VersionReader>> Open(const std::string& run, uint32_t version,
                                                      v1::Apply* order = nullptr) const;
  // Errors: DataLoss if the file is damaged or not that of the version.
  absl::StatusOr<StoredStates> OpenStates(const std::string& run, uint32_t version) const;
  // As OpenStates, for positions and a number of states that the caller expects.
  absl::StatusOr<std::unique_ptr<BlockScan>> ScanStates(const std::string& run, uint32_t version,
                                                        Interval span, int states) const;

  void Remove(const std::string& run, uint32_t version);
  // Keeps the file as a damaged version, in place of the previous one.
  void Quarantine(const std::string& path, absl::string_view why);

 private:
  const DataFolder& folder_;
};

}  // namespace cadre
