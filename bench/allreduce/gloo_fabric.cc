// Gloo as a fabric (fabric.h). Gloo has two interfaces to all-reduce, and either may be faster:
// classes that are created for one buffer and run repeatedly, and the function gloo::allreduce,
// which takes its buffers with each call. Both run over Gloo's TCP transport, the only one in
// Debian's package. Ranks find each other through files in a folder.
//
// Without an installed Gloo, CADRE_HAS_GLOO is not defined, and both functions return an error.
#include "bench/allreduce/fabric.h"

#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

#ifdef CADRE_HAS_GLOO

#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

namespace cadre::bench {
namespace {

using ContextPointer = std::shared_ptr<gloo::Context>;

// Converts exceptions, which Gloo throws, to a Status.
template <typename Body>
absl::Status WithoutExceptions(const Body& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("gloo: ", error.what()));
  }
}

// Gloo's classes, which are created for one buffer and work in place. All-reduce out of place is a
// copy followed by one in place.
class GlooClass final : public AllReduce {
 public:
  GlooClass(ContextPointer context, std::string name)
      : context_(std::move(context)), name_(std::move(name)) {}

  absl::Status Prepare(const Task& task) override {
    task_ = task;
    return WithoutExceptions([&] {
      algorithm_ = task.dtype == DType::kFloat16 ? Make<gloo::float16>() : Make<float>();
    });
  }
  absl::Status Run() override {
    task_.CopyInput();
    return WithoutExceptions([&] { algorithm_->run(); });
  }
  void Finish() override { algorithm_.reset(); }
  std::string name() const override { return name_; }

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

// The function gloo::allreduce, in and out of place. Its options hold the registered buffers, so
// they are created once for each task.
class GlooFunction final : public AllReduce {
 public:
  GlooFunction(ContextPointer context, std::string name,
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
  std::string name() const override { return name_; }

 private:
  template <typename T>
  void SetBuffers(const Task& task) {
    const size_t count = task.data.size() / sizeof(T);
    if (!task.in_place()) {
      // Gloo does not write to the input, but its interface takes no pointer to const.
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

// `name`: one of those that GlooAlgorithms returns.
std::unique_ptr<AllReduce> MakeGlooAllReduce(ContextPointer context, std::string name) {
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  if (!absl::StartsWith(name, "new-")) {
    return std::make_unique<GlooClass>(std::move(context), std::move(name));
  }
  const Algorithm algorithm = name == "new-ring" ? Algorithm::RING : Algorithm::BCUBE;
  return std::make_unique<GlooFunction>(std::move(context), std::move(name), algorithm);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view algorithm, DType dtype,
                                                        int ranks) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16) {
    return absl::InvalidArgumentError(absl::StrCat("gloo does not add ", DTypeName(dtype)));
  }
  // The bcube class requires that the number of ranks is a power of two.
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
    return absl::InvalidArgumentError(absl::StrCat("gloo has no all-reduce by ", algorithm,
                                                   "; it has ring, halving-doubling and auto"));
  }
  return names;
}

absl::StatusOr<Fabric> ConnectGloo(BoardRank& self, const std::string& folder) {
  const auto context = std::make_shared<gloo::rendezvous::Context>(self.rank(), self.ranks());
  CADRE_RETURN_IF_ERROR(WithoutExceptions([&] {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    context->setTimeout(std::chrono::milliseconds(absl::ToInt64Milliseconds(self.timeout())));
    context->connectFullMesh(store, device);
  }));
  return [context](absl::string_view algorithm) -> absl::StatusOr<std::unique_ptr<AllReduce>> {
    return MakeGlooAllReduce(context, std::string(algorithm));
  };
}

}  // namespace cadre::bench

#else

namespace cadre::bench {
namespace {

absl::Status NoGloo() {
  return absl::FailedPreconditionError(
      "this program was built without Gloo: install Debian's libgloo-dev (deploy/setup.sh bench) "
      "and build again");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view, DType, int) {
  return NoGloo();
}

absl::StatusOr<Fabric> ConnectGloo(BoardRank&, const std::string&) { return NoGloo(); }

}  // namespace cadre::bench

#endif
