#include "worker/data/batch_loader.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "worker/data/sampler.h"

namespace cadre {
namespace {

Shape BatchShape(int64_t samples, const Shape& sample) {
  std::vector<int64_t> dims = {samples};
  dims.insert(dims.end(), sample.dims().begin(), sample.dims().end());
  return Shape(std::move(dims));
}

}  // namespace

SampleSource TrainingSamples(const TrainingPart& part) {
  CHECK(part.begin >= 0 && part.begin <= part.end && part.end <= part.batch);
  // Shared because std::function must be copyable; one loader's thread uses it.
  auto sampler = std::make_shared<Sampler>(part.seed, part.dataset_size);
  return [part, sampler](int64_t step, std::span<int64_t> samples) {
    const int64_t first = BatchPosition(step, part.group, part.groups, part.batch);
    sampler->SamplesFrom(first + part.begin, samples);
  };
}

BatchLoader::BatchLoader(const Dataset& dataset, SampleSource source, const Options& options)
    : dataset_(dataset),
      source_(std::move(source)),
      options_(options),
      thread_([this] { Run(); }) {}

BatchLoader::~BatchLoader() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::StatusOr<const Batch*> BatchLoader::Next(int64_t step) {
  CHECK_GE(step, 0);
  absl::MutexLock lock(&mutex_);
  if (current_ != nullptr) free_.push_back(std::move(current_));
  if (next_step_ < 0 || step != first_step_) StartAt(step);
  mutex_.Await(absl::Condition(this, &BatchLoader::HasLoaded));
  Loaded loaded = std::move(loaded_.front());
  loaded_.pop_front();
  if (!loaded.status.ok()) {
    next_step_ = -1;
    return loaded.status;
  }
  ++first_step_;
  current_ = std::move(loaded.batch);
  return current_.get();
}

void BatchLoader::StartAt(int64_t step) {
  for (Loaded& loaded : loaded_) {
    if (loaded.batch != nullptr) free_.push_back(std::move(loaded.batch));
  }
  loaded_.clear();
  ++start_;
  next_step_ = step;
  first_step_ = step;
  failed_ = false;
}

void BatchLoader::Run() {
  while (true) {
    Loaded loaded;
    int64_t step = 0;
    uint64_t start = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &BatchLoader::HasWork));
      if (stopping_) return;
      step = next_step_++;
      start = start_;
      loaded.batch = TakeFree();
    }
    loaded.status = Load(step, *loaded.batch);
    absl::MutexLock lock(&mutex_);
    if (start != start_) {
      free_.push_back(std::move(loaded.batch));
      continue;
    }
    failed_ = !loaded.status.ok();
    loaded_.push_back(std::move(loaded));
  }
}

std::unique_ptr<Batch> BatchLoader::TakeFree() {
  if (free_.empty()) return std::make_unique<Batch>();
  std::unique_ptr<Batch> batch = std::move(free_.back());
  free_.pop_back();
  return batch;
}

bool BatchLoader::HasWork() const {
  return stopping_ ||
         (next_step_ >= 0 && !failed_ && loaded_.size() < std::max<size_t>(options_.prefetch, 1));
}

absl::Status BatchLoader::Load(int64_t step, Batch& batch) const {
  const auto samples = static_cast<size_t>(options_.samples);
  if (batch.samples.size() != samples || batch.images.shape().rank() == 1) {
    batch.images = Tensor(BatchShape(options_.samples, dataset_.sample_shape()));
    batch.labels.resize(samples);
    batch.samples.resize(samples);
  }
  batch.step = step;
  source_(step, batch.samples);
  return dataset_.Get(batch.samples, batch.images.span(), batch.labels);
}

}  // namespace cadre
