// Data sets of JPEG files in any storage, which are decoded, cropped and normalized on request.
//
// A sample that cannot be read is replaced by the next sample of the same class, so that the label
// is known without decoding.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/augmentation.h"
#include "worker/data/dataset.h"

namespace cadre {

// Larger files are rejected without being read.
inline constexpr int64_t kMaxEncodedBytes = int64_t{64} << 20;

// Counts the samples of a data set that cannot be read, logs each of them once, and fails when
// there are too many.
class CorruptSamples {
 public:
  explicit CorruptSamples(int64_t allowed) : allowed_(allowed) {}

  // Adding the same name again has no effect. Errors: DataLoss, naming the sample, if it exceeds
  // the allowed number.
  absl::Status Add(const std::string& name, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t count() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int64_t allowed_;
  mutable absl::Mutex mutex_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

// Encoded images and their labels. Thread-safe.
class EncodedImages {
 public:
  virtual ~EncodedImages() = default;
  // One per sample.
  virtual const std::vector<int32_t>& labels() const = 0;
  // The name used in messages: the file, and the member if it is an archive.
  virtual std::string Name(int64_t index) const = 0;
  // Returns the sample's whole file.
  virtual absl::StatusOr<std::string> Read(int64_t index) const = 0;
};

// Numbers of files, members and folders that are not samples, by kind: the ending of the name
// (".json"), or a name in the plural ("folders").
using UnusedEntries = std::map<std::string, int64_t>;
// ".json (4), folders (1)": the most frequent kinds, in at most kMaxReason bytes of UTF-8.
std::string ToText(const UnusedEntries& unused);

// `corrupt` may already contain samples that were left out of `images`. Logs what Dataset::left_out
// returns: these samples and `unused`.
std::unique_ptr<Dataset> MakeJpegDataset(std::unique_ptr<EncodedImages> images,
                                         const ImageTransform& transform,
                                         std::unique_ptr<CorruptSamples> corrupt,
                                         UnusedEntries unused = {});

}  // namespace cadre
