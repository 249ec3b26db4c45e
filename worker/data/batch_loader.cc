// A batch is loaded by tasks of some rows each, which the threads execute in the order of steps. So
// several threads work on the batch that training waits for, and large samples do not delay it.
//
// Invariants. Batches are in `ahead_` in the order of steps, without gaps. One thread at a time
// opens a batch, so that the RowSource is called by one thread. Each task writes to different rows,
// so the result does not depend on which thread executes it. If several tasks fail, the error of
// the first one is returned. A batch that a restart has discarded is freed by the last thread that
// works on it.
#include "worker/data/batch_loader.h"

#include <glog/logging.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// More tasks per thread balance the load better, but each has an overhead.
constexpr int64_t kTasksPerThread = 2;

int64_t DivideUp(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

BatchLoader::Options AtLeastOne(BatchLoader::Options options) {
  options.prefetch = std::max<int64_t>(options.prefetch, 1);
  options.threads = std::max(options.threads, 1);
  return options;
}

}  // namespace

BatchLoader::BatchLoader(const Dataset& dataset, RowSource source, const Options& options)
    : dataset_(dataset), source_(std::move(source)), options_(AtLeastOne(options)) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

BatchLoader::~BatchLoader() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<const Batch*> BatchLoader::Next(int64_t step) {
  CHECK_GE(step, 0);
  absl::MutexLock lock(&mutex_);
  if (current_ != nullptr) free_.push_back(std::move(current_));
  if (next_step_ < 0 || step != first_step_) StartAt(step);
  if (!mutex_.AwaitWithTimeout(absl::Condition(this, &BatchLoader::HasLoaded), options_.patience)) {
    return absl::DeadlineExceededError(absl::StrCat("the batch of step ", step,
                                                    " was not loaded within ",
                                                    absl::FormatDuration(options_.patience)));
  }
  const LoadingPtr loaded = std::move(ahead_.front());
  ahead_.pop_front();
  if (!loaded->status.ok()) {
    next_step_ = -1;
    return loaded->status;
  }
  ++first_step_;
  current_ = std::move(loaded->batch);
  return current_.get();
}

// Batches that threads still load are only dropped: their memory is freed when the last task ends.
void BatchLoader::StartAt(int64_t step) {
  for (LoadingPtr& loading : ahead_) {
    // Memory to which a thread still writes cannot be reused.
    if (loading->done == loading->assigned) free_.push_back(std::move(loading->batch));
  }
  ahead_.clear();
  if (std::ssize(free_) > options_.prefetch + 1) free_.resize(options_.prefetch + 1);
  ++restarts_;
  next_step_ = step;
  first_step_ = step;
  failed_ = false;
}

bool BatchLoader::HasLoaded() const { return !ahead_.empty() && ahead_.front()->complete(); }

bool BatchLoader::MayOpen() const {
  return next_step_ >= 0 && !failed_ && !opening_ && std::ssize(ahead_) < options_.prefetch;
}

bool BatchLoader::HasWork() const { return stopping_ || FirstUnassigned() != nullptr || MayOpen(); }

BatchLoader::LoadingPtr BatchLoader::FirstUnassigned() const {
  for (const LoadingPtr& loading : ahead_) {
    if (loading->assigned < loading->tasks) return loading;
  }
  return nullptr;
}

void BatchLoader::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &BatchLoader::HasWork));
    if (stopping_) return;
    if (const LoadingPtr loading = FirstUnassigned(); loading != nullptr) {
      LoadNextRows(loading);
    } else {
      OpenNext();
    }
  }
}

// The memory of the batch and its rows are prepared without the lock, because resizing and sampling
// take time; opening_ keeps other threads from opening the same step.
void BatchLoader::OpenNext() {
  opening_ = true;
  const int64_t step = next_step_++;
  const int64_t restarts = restarts_;
  auto loading = std::make_shared<Loading>();
  if (free_.empty()) {
    loading->batch = std::make_unique<Batch>();
  } else {
    loading->batch = std::move(free_.back());
    free_.pop_back();
  }
  mutex_.Unlock();
  Prepare(step, *loading);
  mutex_.Lock();
  opening_ = false;
  if (restarts == restarts_) {
    ahead_.push_back(std::move(loading));
  } else {
    free_.push_back(std::move(loading->batch));
  }
}

// With one thread a batch is one task.
void BatchLoader::Prepare(int64_t step, Loading& loading) const {
  Batch& batch = *loading.batch;
  batch.step = step;
  source_(step, batch.rows);
  const int64_t rows = std::ssize(batch.rows.inputs);
  const Shape shape = BatchShape(rows, dataset_.sample_shape());
  if (batch.inputs.shape() != shape) batch.inputs = Tensor(shape);
  batch.labels.resize(batch.rows.labels.size() * dataset_.labels_per_sample());
  const int64_t tasks = options_.threads == 1 ? 1 : options_.threads * kTasksPerThread;
  loading.rows_per_task = std::max<int64_t>(DivideUp(rows, tasks), 1);
  loading.tasks = DivideUp(rows, loading.rows_per_task);
  if (batch.rows.labels != batch.rows.inputs) ++loading.tasks;
}

void BatchLoader::LoadNextRows(const LoadingPtr& loading) {
  const int task = loading->assigned++;
  mutex_.Unlock();
  const absl::Status status = Load(*loading, task);
  mutex_.Lock();
  ++loading->done;
  if (status.ok()) return;
  if (loading->status.ok() || task < loading->failed_task) {
    loading->status = status;
    loading->failed_task = task;
  }
  // The error of a discarded batch has no effect.
  failed_ |= std::find(ahead_.begin(), ahead_.end(), loading) != ahead_.end();
}

absl::Status BatchLoader::Load(const Loading& loading, int task) const {
  Batch& batch = *loading.batch;
  const int64_t rows = std::ssize(batch.rows.inputs);
  const int64_t first = task * loading.rows_per_task;
  if (first >= rows) return dataset_.GetLabels(batch.rows.labels, batch.labels);
  const int64_t count = std::min(loading.rows_per_task, rows - first);
  const int64_t elements = dataset_.sample_shape().elements();
  const int64_t labels = dataset_.labels_per_sample();
  const bool same_rows = batch.rows.labels == batch.rows.inputs;
  return dataset_.Get(std::span(batch.rows.inputs).subspan(first, count),
                      batch.inputs.span().subspan(first * elements, count * elements),
                      same_rows ? std::span(batch.labels).subspan(first * labels, count * labels)
                                : std::span<int32_t>());
}

}  // namespace cadre
