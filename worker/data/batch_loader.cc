#include "worker/data/batch_loader.h"

#include <glog/logging.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// A batch is cut into this many pieces for each thread: enough that none waits long for another,
// few enough that a piece is worth its bookkeeping.
constexpr int64_t kPiecesPerThread = 2;

int64_t RoundUp(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

BatchLoader::Options Sane(BatchLoader::Options options) {
  options.prefetch = std::max<size_t>(options.prefetch, 1);
  options.threads = std::max(options.threads, 1);
  return options;
}

}  // namespace

BatchLoader::BatchLoader(const Dataset& dataset, RowSource source, const Options& options)
    : dataset_(dataset), source_(std::move(source)), options_(Sane(options)) {
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

void BatchLoader::StartAt(int64_t step) {
  for (LoadingPtr& loading : ahead_) {
    // What a thread is still writing to is dropped when that thread is done.
    if (loading->done == loading->taken) free_.push_back(std::move(loading->batch));
  }
  ahead_.clear();
  if (free_.size() > options_.prefetch + 1) free_.resize(options_.prefetch + 1);
  ++start_;
  next_step_ = step;
  first_step_ = step;
  failed_ = false;
}

bool BatchLoader::HasLoaded() const { return !ahead_.empty() && ahead_.front()->complete(); }

bool BatchLoader::MayOpen() const {
  return next_step_ >= 0 && !failed_ && !opening_ && ahead_.size() < options_.prefetch;
}

bool BatchLoader::HasWork() const { return stopping_ || Untaken() != nullptr || MayOpen(); }

BatchLoader::LoadingPtr BatchLoader::Untaken() const {
  for (const LoadingPtr& loading : ahead_) {
    if (loading->taken < loading->pieces) return loading;
  }
  return nullptr;
}

void BatchLoader::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &BatchLoader::HasWork));
    if (stopping_) return;
    if (const LoadingPtr loading = Untaken(); loading != nullptr) {
      LoadPiece(loading);
    } else {
      OpenNext();
    }
  }
}

void BatchLoader::OpenNext() {
  opening_ = true;
  const int64_t step = next_step_++;
  const uint64_t start = start_;
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
  if (start == start_) {
    ahead_.push_back(std::move(loading));
  } else {
    free_.push_back(std::move(loading->batch));
  }
}

void BatchLoader::Prepare(int64_t step, Loading& loading) const {
  Batch& batch = *loading.batch;
  batch.step = step;
  source_(step, batch.rows);
  const auto rows = static_cast<int64_t>(batch.rows.inputs.size());
  const Shape shape = BatchShape(rows, dataset_.sample_shape());
  if (batch.inputs.shape() != shape) batch.inputs = Tensor(shape);
  batch.labels.resize(batch.rows.labels.size() * static_cast<size_t>(dataset_.labels_per_sample()));
  const int64_t wanted_pieces = options_.threads == 1 ? 1 : options_.threads * kPiecesPerThread;
  loading.piece_rows = std::max<int64_t>(RoundUp(rows, wanted_pieces), 1);
  loading.pieces = static_cast<int>(RoundUp(rows, loading.piece_rows));
  if (batch.rows.labels != batch.rows.inputs) ++loading.pieces;
}

void BatchLoader::LoadPiece(const LoadingPtr& loading) {
  const int piece = loading->taken++;
  mutex_.Unlock();
  const absl::Status status = Load(*loading, piece);
  mutex_.Lock();
  ++loading->done;
  if (status.ok()) return;
  if (loading->status.ok() || piece < loading->failed_piece) {
    loading->status = status;
    loading->failed_piece = piece;
  }
  // A stale batch fails for nobody.
  failed_ |= std::find(ahead_.begin(), ahead_.end(), loading) != ahead_.end();
}

absl::Status BatchLoader::Load(const Loading& loading, int piece) const {
  Batch& batch = *loading.batch;
  const auto rows = static_cast<int64_t>(batch.rows.inputs.size());
  const int64_t begin = piece * loading.piece_rows;
  if (begin >= rows) return dataset_.GetLabels(batch.rows.labels, batch.labels);
  const auto first = static_cast<size_t>(begin);
  const auto count = static_cast<size_t>(std::min(loading.piece_rows, rows - begin));
  const auto elements = static_cast<size_t>(dataset_.sample_shape().elements());
  const auto labels = static_cast<size_t>(dataset_.labels_per_sample());
  const bool same_rows = batch.rows.labels == batch.rows.inputs;
  return dataset_.Get(std::span(batch.rows.inputs).subspan(first, count),
                      batch.inputs.span().subspan(first * elements, count * elements),
                      same_rows ? std::span(batch.labels).subspan(first * labels, count * labels)
                                : std::span<int32_t>());
}

}  // namespace cadre
