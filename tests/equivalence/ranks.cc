#include "tests/equivalence/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "absl/time/time.h"
#include "base/random.h"
#include "spec/graph.h"
#include "worker/comm/thread_transport.h"

namespace cadre {
namespace {

constexpr float kRate = 0.05F;

class Rank {
 public:
  Rank(const v1::RunSpec& spec, const v1::Plan& plan, Transport& transport,
       std::unique_ptr<Kernels> kernels)
      : spec_(spec), kernels_(std::move(kernels)) {
    auto made = Replica::Make(spec, plan, *kernels_, transport);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) replica_ = *std::move(made);
  }

  void Train(int steps) {
    if (replica_ == nullptr) return;
    for (int step = 0; step < steps && ok_; ++step) {
      const LossPart part = Step(step);
      losses_.push_back(part.loss);
      counted_.push_back(part.samples);
      Check(replica_->GatherWeights());
    }
    if (ok_) Evaluate(steps - 1);
    if (ok_) {
      auto digest = replica_->GroupDigest();
      Check(digest.status());
      if (digest.ok()) digest_ = *digest;
    }
  }

  const std::unique_ptr<Replica>& replica() const { return replica_; }
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<int64_t>& counted() const { return counted_; }
  const LossPart& evaluation() const { return evaluation_; }
  uint64_t digest() const { return digest_; }

 private:
  void Check(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    ok_ = ok_ && status.ok();
  }

  LossPart Step(int step) {
    const WholeBatch batch = MakeBatch(spec_, spec_.batch_per_group(), step);
    auto part = replica_->Step(batch.samples, Images(batch), Labels(batch), kRate);
    Check(part.status());
    return part.ok() ? *part : LossPart();
  }

  void Evaluate(int step) {
    const WholeBatch batch = MakeBatch(spec_, spec_.batch_per_group(), step);
    auto part = replica_->Evaluate(batch.samples, Images(batch), Labels(batch));
    Check(part.status());
    if (part.ok()) evaluation_ = *part;
  }

  std::span<const float> Images(const WholeBatch& batch) const {
    const Rows rows = replica_->ImageRows(batch.samples);
    const auto per = batch.images.size() / static_cast<size_t>(batch.samples);
    return std::span(batch.images)
        .subspan(static_cast<size_t>(rows.begin) * per, static_cast<size_t>(rows.size()) * per);
  }

  std::span<const int32_t> Labels(const WholeBatch& batch) const {
    const Rows rows = replica_->LabelRows(batch.samples);
    return std::span(batch.labels)
        .subspan(static_cast<size_t>(rows.begin), static_cast<size_t>(rows.size()));
  }

  const v1::RunSpec& spec_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Replica> replica_;
  std::vector<double> losses_;
  std::vector<int64_t> counted_;
  LossPart evaluation_;
  uint64_t digest_ = 0;
  bool ok_ = true;
};

GroupResult PutTogether(const std::vector<std::unique_ptr<Rank>>& ranks, int steps) {
  GroupResult result;
  const int64_t size = ranks[0]->replica()->index().size();
  result.weights.assign(static_cast<size_t>(size), 0.0F);
  std::vector<int> owners(static_cast<size_t>(size), 0);
  result.losses.assign(static_cast<size_t>(steps), 0.0);
  std::vector<int64_t> counted(static_cast<size_t>(steps), 0);
  for (const auto& rank : ranks) {
    for (const OwnedSpan& span : rank->replica()->owned()) {
      std::copy(span.values, span.values + (span.end - span.begin),
                result.weights.begin() + span.begin);
      for (int64_t i = span.begin; i < span.end; ++i) ++owners[static_cast<size_t>(i)];
    }
    for (size_t s = 0; s < rank->losses().size(); ++s) {
      result.losses[s] += rank->losses()[s];
      counted[s] += rank->counted()[s];
    }
    result.evaluation.loss += rank->evaluation().loss;
    result.evaluation.correct += rank->evaluation().correct;
    result.evaluation.samples += rank->evaluation().samples;
    EXPECT_EQ(rank->digest(), ranks[0]->digest());
  }
  EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }))
      << "every element has one owner";
  for (size_t s = 0; s < counted.size(); ++s) {
    EXPECT_GT(counted[s], 0);
    result.losses[s] /= static_cast<double>(std::max<int64_t>(1, counted[s]));
  }
  result.digest = ranks[0]->digest();
  return result;
}

}  // namespace

WholeBatch MakeBatch(const v1::RunSpec& spec, int64_t samples, int64_t step) {
  const v1::Image& image = spec.model().input();
  const int64_t per = int64_t{image.channels()} * image.height() * image.width();
  const auto stream = static_cast<uint64_t>(step);
  WholeBatch batch{.samples = samples};
  for (int64_t i = 0; i < samples * per; ++i) {
    batch.images.push_back(
        RandomNormal(spec.seed(), RandomStream::kTest, stream, static_cast<uint64_t>(i)));
  }
  const auto graph = Graph::FromModel(spec.model());
  EXPECT_TRUE(graph.ok()) << graph.status();
  for (int64_t i = 0; i < samples; ++i) {
    batch.labels.push_back(static_cast<int32_t>(
        RandomBits(spec.seed(), RandomStream::kTest, ~stream, static_cast<uint64_t>(i)) %
        static_cast<uint64_t>(graph->classes())));
  }
  return batch;
}

GroupResult TrainGroup(const v1::RunSpec& spec, const v1::Plan& plan, int steps,
                       const KernelsFactory& kernels) {
  int ranks_wanted = 1;
  for (const v1::MeshAxis& axis : plan.mesh()) ranks_wanted *= static_cast<int>(axis.size());
  std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(ranks_wanted, absl::Seconds(60));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const auto& transport : transports) {
    ranks.push_back(std::make_unique<Rank>(spec, plan, *transport, kernels()));
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&] { rank->Train(steps); });
  for (std::thread& thread : threads) thread.join();
  if (testing::Test::HasFailure()) return {};
  return PutTogether(ranks, steps);
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    // A NaN compares with nothing; it must not pass for equal.
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace cadre
