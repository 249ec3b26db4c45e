// Prefetches batches on its own threads.
//
//   BatchLoader loader(dataset, TrainingRows({...}), {.threads = 2});
//   CADRE_ASSIGN_OR_RETURN(const Batch* batch, loader.Next(step));
//
// The rows of a batch are a function of the step (RowSource), and the content of a row is a
// function of its sample and epoch. So the step is the whole state: a loader that starts at a step
// returns the same batches as a loader that has loaded all earlier steps, with any number of
// threads.
//
// Steps are loaded in ascending order from the last requested one. Requesting any other step
// restarts there; batches that were prefetched before are discarded.
//
// Thread-compatible: one thread calls Next. The data set is borrowed and must outlive the loader.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tensor/tensor.h"
#include "worker/data/batch_rows.h"
#include "worker/data/dataset.h"

namespace cadre {

struct Batch {
  int64_t step = 0;
  // [rows.inputs, ...sample shape]: [n, height, width, channels] or [n, length].
  Tensor inputs;
  // The labels of rows.labels, labels_per_sample() each.
  std::vector<int32_t> labels;
  // The samples and micro-batches.
  BatchRows rows;
};

class BatchLoader {
 public:
  struct Options {
    // Number of batches that are prefetched, at least 1.
    int64_t prefetch = 3;
    // Number of threads that read and decode, at least 1.
    int threads = 1;
    // How long Next waits for a batch.
    absl::Duration patience = absl::Minutes(10);
  };

  BatchLoader(const Dataset& dataset, RowSource source, const Options& options);
  ~BatchLoader();

  // Returns the batch of `step`, which is valid until the next call. Waits for the loading threads.
  // A batch may have no rows, because a rank may have no part of it.
  // Errors: those of the data set; DeadlineExceeded after Options::patience. Calling again for the
  // same step retries. Requires: step >= 0.
  absl::StatusOr<const Batch*> Next(int64_t step) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A batch that is being loaded. Threads write to disjoint parts of `batch`; the loader's mutex
  // guards the rest.
  struct Loading {
    std::unique_ptr<Batch> batch;
    // A task loads this many rows. If labels belong to other rows than inputs, one more task loads
    // all labels.
    int64_t rows_per_task = 0;
    int tasks = 0;
    int assigned = 0;
    int done = 0;
    // Error and number of the first task that failed.
    absl::Status status;
    int failed_task = 0;

    bool complete() const { return done == tasks; }
  };
  // Shared, because a thread may still load a batch that a restart has discarded.
  using LoadingPtr = std::shared_ptr<Loading>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the tasks of the next step's batch. Releases the mutex meanwhile.
  void OpenNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Executes one task. Releases the mutex meanwhile.
  void LoadNextRows(const LoadingPtr& loading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare(int64_t step, Loading& loading) const;
  absl::Status Load(const Loading& loading, int task) const;
  // Discards all batches and restarts at `step`.
  void StartAt(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first batch with an unassigned task, or null.
  LoadingPtr FirstUnassigned() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasLoaded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Dataset& dataset_;
  // Called by the thread that has set opening_.
  const RowSource source_;
  const Options options_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The step to open next; negative before the first call, and after an error was returned.
  int64_t next_step_ ABSL_GUARDED_BY(mutex_) = -1;
  // The step of the first batch in `ahead_`; if `ahead_` is empty, the step of the next batch.
  int64_t first_step_ ABSL_GUARDED_BY(mutex_) = -1;
  // A batch has failed; no later one is opened.
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of restarts; tells whether a batch was opened before the last restart.
  int64_t restarts_ ABSL_GUARDED_BY(mutex_) = 0;
  // In the order of steps.
  std::deque<LoadingPtr> ahead_ ABSL_GUARDED_BY(mutex_);
  // Batches whose memory is reused; at most prefetch + 1.
  std::vector<std::unique_ptr<Batch>> free_ ABSL_GUARDED_BY(mutex_);

  // The batch that Next has returned.
  std::unique_ptr<Batch> current_;
  std::vector<std::thread> threads_;
};

}  // namespace cadre
