#include "bench/allreduce/gloo_network.h"

#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::bench {
namespace {

using ContextPointer = std::shared_ptr<gloo::Context>;

// Gloo throws; its words become a Status here and go no further.
template <typename Body>
absl::Status WithoutExceptions(const Body& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("gloo: ", error.what()));
  }
}

// The classes: made for a buffer, in place. Out of place is a copy and then in place.
class ClassContestant final : public Contestant {
 public:
  ClassContestant(ContextPointer context, std::string name)
      : context_(std::move(context)), name_(std::move(name)) {}

  absl::Status Prepare(const Task& task) override {
    task_ = task;
    return WithoutExceptions([&] {
      algorithm_ = task.dtype == DType::kFloat16 ? Make<gloo::float16>() : Make<float>();
    });
  }
  absl::Status Run() override {
    if (!task_.in_place()) std::memcpy(task_.data.data(), task_.input.data(), task_.input.size());
    return WithoutExceptions([&] { algorithm_->run(); });
  }
  void Finish() override { algorithm_.reset(); }
  std::string algorithm() const override { return name_; }

 private:
  template <typename T>
  std::unique_ptr<gloo::Algorithm> Make() const {
    const std::vector<T*> pointers = {reinterpret_cast<T*>(task_.data.data())};
    const int count = static_cast<int>(task_.data.size() / sizeof(T));
    if (name_ == "ring-chunked") {
      return std::make_unique<gloo::AllreduceRingChunked<T>>(context_, pointers, count);
    }
    if (name_ == "halving-doubling") {
      return std::make_unique<gloo::AllreduceHalvingDoubling<T>>(context_, pointers, count);
    }
    return std::make_unique<gloo::AllreduceBcube<T>>(context_, pointers, count);
  }

  const ContextPointer context_;
  const std::string name_;
  Task task_;
  std::unique_ptr<gloo::Algorithm> algorithm_;
};

// The function, in and out of place. Its options hold the registered buffers, so they are made once
// for a task.
class FunctionContestant final : public Contestant {
 public:
  FunctionContestant(ContextPointer context, std::string name,
                     gloo::AllreduceOptions::Algorithm algorithm)
      : context_(std::move(context)), name_(std::move(name)), algorithm_(algorithm) {}

  absl::Status Prepare(const Task& task) override {
    return WithoutExceptions([&] {
      options_ = std::make_unique<gloo::AllreduceOptions>(context_);
      options_->setAlgorithm(algorithm_);
      task.dtype == DType::kFloat16 ? SetBuffers<gloo::float16>(task) : SetBuffers<float>(task);
    });
  }
  absl::Status Run() override {
    return WithoutExceptions([&] { gloo::allreduce(*options_); });
  }
  void Finish() override { options_.reset(); }
  std::string algorithm() const override { return name_; }

 private:
  template <typename T>
  void SetBuffers(const Task& task) {
    const size_t count = task.data.size() / sizeof(T);
    if (!task.in_place()) {
      // Gloo does not write to it, but takes no pointer to const.
      options_->setInput(reinterpret_cast<T*>(const_cast<std::byte*>(task.input.data())), count);
    }
    options_->setOutput(reinterpret_cast<T*>(task.data.data()), count);
    void (*sum)(void*, const void*, const void*, size_t) = &gloo::sum<T>;
    options_->setReduceFunction(sum);
  }

  const ContextPointer context_;
  const std::string name_;
  const gloo::AllreduceOptions::Algorithm algorithm_;
  std::unique_ptr<gloo::AllreduceOptions> options_;
};

class GlooNetwork final : public Network {
 public:
  GlooNetwork(int rank, int ranks, std::string folder, absl::Duration timeout)
      : rank_(rank), ranks_(ranks), folder_(std::move(folder)), timeout_(timeout) {}

  absl::StatusOr<std::string> Listen() override { return std::string(); }

  absl::Status Connect(const std::vector<std::string>&) override {
    return WithoutExceptions([&] {
      gloo::transport::tcp::attr attributes;
      attributes.iface = "lo";
      std::shared_ptr<gloo::transport::Device> device =
          gloo::transport::tcp::CreateDevice(attributes);
      gloo::rendezvous::FileStore store(folder_);
      auto context = std::make_shared<gloo::rendezvous::Context>(rank_, ranks_);
      context->setTimeout(std::chrono::milliseconds(absl::ToInt64Milliseconds(timeout_)));
      context->connectFullMesh(store, device);
      context_ = std::move(context);
    });
  }

  absl::StatusOr<std::unique_ptr<Contestant>> Make(absl::string_view algorithm) override {
    using Algorithm = gloo::AllreduceOptions::Algorithm;
    std::string name(algorithm);
    if (name == "new-ring") {
      return std::make_unique<FunctionContestant>(context_, std::move(name), Algorithm::RING);
    }
    if (name == "new-bcube") {
      return std::make_unique<FunctionContestant>(context_, std::move(name), Algorithm::BCUBE);
    }
    return std::make_unique<ClassContestant>(context_, std::move(name));
  }

 private:
  const int rank_;
  const int ranks_;
  const std::string folder_;
  const absl::Duration timeout_;
  ContextPointer context_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view algorithm, DType dtype,
                                                        int ranks) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16) {
    return absl::InvalidArgumentError(absl::StrCat("gloo does not add ", DTypeName(dtype)));
  }
  // Its bcube class works in groups of two and needs them whole.
  const bool whole_groups = (ranks & (ranks - 1)) == 0;
  std::vector<std::string> names;
  if (algorithm == "auto") {
    names = {"ring-chunked", "halving-doubling", "new-ring", "new-bcube"};
    if (whole_groups) names.push_back("bcube");
  } else if (algorithm == "ring") {
    names = {"ring-chunked", "new-ring"};
  } else if (algorithm == "halving-doubling") {
    names = {"halving-doubling"};
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("gloo has no all-reduce by ", algorithm,
                     "; of ours it has ring and halving-doubling, and auto takes its best"));
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Network>> MakeGlooNetwork(int rank, int ranks,
                                                         const std::string& folder,
                                                         absl::Duration timeout) {
  return std::make_unique<GlooNetwork>(rank, ranks, folder, timeout);
}

}  // namespace cadre::bench
