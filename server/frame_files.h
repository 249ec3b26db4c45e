// The frames of a store: of each version whose change is coded, the code, in a file frame-<v>.
//
// Frames are kept when their versions are removed, the newest ones as long as all of them together
// are shorter than a version: a rank that lacks versions pulls the frames, or the newest version.
//
// Thread-safe, but two threads must not write the same frame.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/block_file.h"
#include "server/data_folder.h"
#include "server/ledger.h"
#include "server/round_mean.h"

namespace cadre {

// A part of a frame: elements of 4 bytes.
struct StoredFrame {
  std::unique_ptr<VersionReader> reader;
  Interval elements;
  // What the round has exchanged.
  uint32_t fragment = 0;
};

class FrameFiles {
 public:
  // The folder is borrowed.
  explicit FrameFiles(const DataFolder& folder) : folder_(folder) {}

  // Registers a frame that an earlier process has left. Errors: those of opening it.
  absl::Status Load(const std::string& run, uint32_t version);
  // The part of a version's frame for these positions, with `fragments` in the run. Requires:
  // borders of units. Errors: NotFound if there is none, DataLoss if it is damaged.
  absl::StatusOr<StoredFrame> Open(const std::string& run, uint32_t version,
                                   const ExchangeUnits& units, uint32_t fragments,
                                   Interval positions) const;
  // A temporary file for the frame of the version that the plan makes.
  absl::StatusOr<std::unique_ptr<BlockWriter>> Create(const ApplyPlan& plan, Codec codec) const;
  // Makes the frame durable, and removes the oldest ones.
  absl::Status Finish(const ApplyPlan& plan, RoundUpdate& update) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const std::string& run, uint32_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes those of versions after `newest`.
  void RemoveAfter(const std::string& run, uint32_t newest) ABSL_LOCKS_EXCLUDED(mutex_);
  // The files of the run are removed or renamed.
  void Forget(const std::string& run) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Removes the frames that the condition selects: the newest first, with the bytes of all frames
  // from this one on.
  void RemoveIf(const std::string& run,
                const std::function<bool(uint32_t version, uint64_t bytes)>& condition)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const DataFolder& folder_;
  absl::Mutex mutex_;
  // By run and version, the bytes of every frame.
  std::map<std::string, std::map<uint32_t, uint64_t>> frames_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
