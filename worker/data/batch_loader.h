// Loads batches ahead of the training step, on threads of its own.
//
//   BatchLoader loader(dataset, TrainingRows({...}), {.threads = 2});
//   CADRE_ASSIGN_OR_RETURN(const Batch* batch, loader.Next(step));
//
// Which rows make up a step's batch is a function of the step (a RowSource), and what a row holds
// is a function of its sample and epoch. So the step is the whole cursor: a loader that starts at a
// step hands out what one that ran through to it would, with any number of threads.
//
// Steps are loaded in ascending order from the last one asked for; requesting any other
// step restarts there, and nothing of the old order is handed out.
//
// Thread-compatible: one thread calls Next. The data set is borrowed and must outlive the loader.
// A batch is loaded in pieces of some rows, each by whichever thread is free.
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
  // One after another those of rows.labels, labels_per_sample() each.
  std::vector<int32_t> labels;
  // Which samples these are, and where the micro-batches lie.
  BatchRows rows;
};

class BatchLoader {
 public:
  struct Options {
    // Batches loaded ahead, at least 1.
    size_t prefetch = 3;
    // Threads that read and decode, at least 1.
    int threads = 1;
    // How long Next waits for a batch.
    absl::Duration patience = absl::Minutes(10);
  };

  BatchLoader(const Dataset& dataset, RowSource source, const Options& options);
  ~BatchLoader();

  // The batch of `step`, which stays valid until the next call. Waits for the loading threads. A
  // batch without rows is legal: a rank may have nothing to do.
  // Errors: what the data set said; DeadlineExceeded after Options::patience. AllocationLabel again
  // tries again. Requires: step >= 0.
  absl::StatusOr<const Batch*> Next(int64_t step) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A batch in the making. Threads write into disjoint parts of `batch`; the rest is under the
  // loader's mutex.
  struct Loading {
    std::unique_ptr<Batch> batch;
    // Rows of a piece; the last piece is the labels alone, where these are of other rows.
    int64_t piece_rows = 0;
    int pieces = 0;
    int taken = 0;
    int done = 0;
    // Of the first piece that failed.
    absl::Status status;
    int failed_piece = 0;

    bool complete() const { return done == pieces; }
  };
  // Shared: a thread may still be busy with a batch that a fresh start has dropped.
  using LoadingPtr = std::shared_ptr<Loading>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens the batch of the next step for loading; lets go of the mutex meanwhile.
  void OpenNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoadPiece(const LoadingPtr& loading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare(int64_t step, Loading& loading) const;
  absl::Status Load(const Loading& loading, int piece) const;
  // Drops what is loaded and what is being loaded, and goes on at `step`.
  void StartAt(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first batch with a piece that nobody has taken, or null.
  LoadingPtr Untaken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasLoaded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Dataset& dataset_;
  // Called by the one thread that has set opening_.
  const RowSource source_;
  const Options options_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The step to open next; negative while there is nothing to load: before the first call, and
  // after an error was handed out.
  int64_t next_step_ ABSL_GUARDED_BY(mutex_) = -1;
  // The step of the first batch in `ahead_`, or of the one that will be.
  int64_t first_step_ ABSL_GUARDED_BY(mutex_) = -1;
  // A batch has failed; nothing is opened after it.
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  // Changes at every fresh start, so that a batch in the making is recognised as stale.
  uint64_t start_ ABSL_GUARDED_BY(mutex_) = 0;
  // By step.
  std::deque<LoadingPtr> ahead_ ABSL_GUARDED_BY(mutex_);
  // Batches whose memory is used again; at most prefetch + 1.
  std::vector<std::unique_ptr<Batch>> free_ ABSL_GUARDED_BY(mutex_);

  // Handed out by Next.
  std::unique_ptr<Batch> current_;
  std::vector<std::thread> threads_;
};

}  // namespace cadre
