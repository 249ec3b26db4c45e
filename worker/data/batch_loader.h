// Loads batches ahead of the training step, on a thread of its own.
//
//   BatchLoader loader(dataset, TrainingSamples({...}), {.samples = 16});
//   CADRE_ASSIGN_OR_RETURN(const Batch* batch, loader.Next(step));
//
// Which samples make up a step's batch is a function (a SampleSource). Steps are loaded in
// ascending order from the last one asked for; asking for any other step starts afresh there, and
// nothing of the old order is handed out.
//
// Thread-compatible: one thread calls Next. The data set is borrowed and must outlive the loader.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tensor/tensor.h"
#include "worker/data/dataset.h"

namespace cadre {

struct Batch {
  int64_t step = 0;
  // [samples, channels, height, width].
  Tensor images;
  std::vector<int32_t> labels;
  // Which samples these are.
  std::vector<int64_t> samples;
};

// Fills in the samples of a step's batch, all entries. Called on the loader's thread only.
using SampleSource = std::function<void(int64_t step, std::span<int64_t> samples)>;

// What one rank takes of its group's batches.
struct TrainingPart {
  uint64_t seed = 0;
  // Samples in the data set, > 0.
  int64_t dataset_size = 0;
  int64_t group = 0;
  int64_t groups = 1;
  // Samples per group and step, and the part [begin, end) of them that this rank takes.
  int64_t batch = 0;
  int64_t begin = 0;
  int64_t end = 0;
};
SampleSource TrainingSamples(const TrainingPart& part);

class BatchLoader {
 public:
  struct Options {
    // Samples in a batch; zero is legal: a rank may have nothing to do.
    int64_t samples = 0;
    // Batches loaded ahead, at least 1.
    size_t prefetch = 3;
  };

  BatchLoader(const Dataset& dataset, SampleSource source, const Options& options);
  ~BatchLoader();

  // The batch of `step`, which stays valid until the next call. Waits for the loading thread.
  // Errors: what the data set said; asking again tries again.
  // Requires: step >= 0.
  absl::StatusOr<const Batch*> Next(int64_t step) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Loaded {
    absl::Status status;
    std::unique_ptr<Batch> batch;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Load(int64_t step, Batch& batch) const;
  // Drops what is loaded and what is being loaded, and goes on at `step`.
  void StartAt(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Batch> TakeFree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasLoaded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !loaded_.empty(); }

  const Dataset& dataset_;
  const SampleSource source_;
  const Options options_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The step to load next; negative while there is nothing to load: before the first call, and
  // after an error was handed out.
  int64_t next_step_ ABSL_GUARDED_BY(mutex_) = -1;
  // The step of the first batch in `loaded_`, or of the one that will be.
  int64_t first_step_ ABSL_GUARDED_BY(mutex_) = -1;
  // The last of `loaded_` is an error; nothing follows it.
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  // Changes at every fresh start, so that a batch in the making is recognised as stale.
  uint64_t start_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Loaded> loaded_ ABSL_GUARDED_BY(mutex_);
  // Batches whose memory is used again.
  std::vector<std::unique_ptr<Batch>> free_ ABSL_GUARDED_BY(mutex_);

  // Handed out by Next.
  std::unique_ptr<Batch> current_;
  std::thread thread_;
};

}  // namespace cadre
