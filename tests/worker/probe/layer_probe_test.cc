// The probe returns every layer part of the requested plans once, with plausible times. Plans for
// several ranks are timed on one rank, and values stay finite.
#include "worker/probe/layer_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cluster_profile.h"
#include "plan/layer_part.h"
#include "plan/plan.h"
#include "plan/search/planner.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

constexpr char kSpec[] = R"(
  name: "small"
  model {
    input { channels: 3 height: 9 width: 8 }
    layer { name: "conv1" convolution { out_channels: 6 kernel: 3 padding: 1 } }
    layer { name: "norm1" batch_norm {} }
    layer { name: "relu1" relu {} }
    layer { name: "conv2" convolution { out_channels: 5 kernel: 3 padding: 1 } }
    layer { name: "pool" max_pool { kernel: 2 stride: 2 } }
    layer { name: "fc1" fully_connected { out_features: 20 } }
    layer { name: "relu2" relu {} }
    layer { name: "fc2" fully_connected { out_features: 10 } }
    layer { name: "loss" softmax_cross_entropy {} }
  }
  data { synthetic { train_samples: 64 test_samples: 8 classes: 10 } }
  batch_per_group: 10
  optimizer { sgd { momentum: 0.9 } }
  schedule { base_rate: 0.1 }
)";

v1::RunSpec Spec() { return Parse<v1::RunSpec>(kSpec); }

v1::ProbeRequest RequestFor(v1::RunSpec spec, int ranks, int model_ranks, int space_ranks) {
  spec.mutable_cluster()->set_model_ranks(model_ranks);
  spec.mutable_cluster()->set_space_ranks(space_ranks);
  v1::ProbeRequest request;
  *request.mutable_spec() = spec;
  request.set_steps(2);
  const auto plan = MakePlan(spec, ranks);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (plan.ok()) *request.add_plan() = *plan;
  return request;
}

absl::StatusOr<v1::DeviceProfile> Probe(const v1::ProbeRequest& request,
                                        const LayerProbeOptions& options = {}) {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
  return ProbeLayers(request, *kernels, options);
}

void ExpectTime(double seconds) {
  EXPECT_TRUE(std::isfinite(seconds));
  EXPECT_GE(seconds, 0);
  EXPECT_LT(seconds, 10);
}

using Part = std::tuple<std::string, uint32_t, uint32_t, uint32_t, uint32_t>;

std::set<Part> PartsIn(const v1::ModelTimes& times) {
  std::set<Part> parts;
  for (const v1::LayerTime& time : times.time()) {
    const bool is_new =
        parts.emplace(time.layer(), time.samples(), time.rows(), time.outs(), time.ins()).second;
    EXPECT_TRUE(is_new) << time.ShortDebugString();
    ExpectTime(time.forward());
    ExpectTime(time.backward());
  }
  return parts;
}

// The layer parts that a plan contains, for a batch of `samples`.
std::set<Part> PartsOfPlan(const v1::ProbeRequest& request, int64_t samples) {
  const auto graph = Graph::FromModel(request.spec().model());
  const ParameterIndex index = ParameterIndex::FromGraph(*graph);
  const auto plan = PlanFromProto(request.plan(0), *graph, index);
  std::set<Part> parts;
  for (int l = 0; l < graph->size(); ++l) {
    const LayerPart part = PartOf(plan->layers[l], plan->mesh, samples);
    parts.emplace((*graph)[l].name, part.samples, part.rows, part.outs, part.ins);
  }
  return parts;
}

struct Group {
  int ranks;
  int model_ranks;
  int space_ranks;
  // The batch of 10, rounded up to a multiple of the ranks.
  int64_t samples;
};

class LayerProbeTest : public testing::TestWithParam<Group> {};

TEST_P(LayerProbeTest, TimesEveryPart) {
  const Group& group = GetParam();
  const v1::ProbeRequest request =
      RequestFor(Spec(), group.ranks, group.model_ranks, group.space_ranks);
  const auto device = Probe(request);
  ASSERT_TRUE(device.ok()) << device.status();
  ASSERT_EQ(device->model_size(), 1);
  EXPECT_EQ(device->model(0).model(), ModelKey(request.spec().model()));
  EXPECT_EQ(device->model(0).name(), "small");
  EXPECT_EQ(PartsIn(device->model(0)), PartsOfPlan(request, group.samples));
  EXPECT_GT(device->flops(), 1e3);
  EXPECT_LT(device->flops(), 1e16);
  EXPECT_GT(device->update_seconds(), 0);
  EXPECT_GT(device->copy_seconds(), 0);
  // The result is a valid part of a profile.
  v1::ClusterProfile profile;
  *profile.add_device() = *device;
  profile.mutable_device(0)->set_name("cpu");
  profile.add_host()->set_name("here");
  profile.mutable_host(0)->set_device("cpu");
  EXPECT_TRUE(CheckProfile(profile).ok()) << CheckProfile(profile);
}

INSTANTIATE_TEST_SUITE_P(Groups, LayerProbeTest,
                         testing::Values(Group{1, 1, 1, 10}, Group{2, 1, 1, 10}, Group{2, 2, 1, 10},
                                         Group{2, 1, 2, 10}, Group{3, 3, 1, 12}, Group{4, 2, 1, 12},
                                         Group{4, 1, 4, 12}, Group{8, 2, 2, 16},
                                         Group{16, 4, 1, 16}));

TEST(LayerProbe, KnownPartsAreNotTimedAgain) {
  v1::ProbeRequest request = RequestFor(Spec(), 2, 1, 1);
  *request.add_plan() = request.plan(0);
  *request.add_plan() = RequestFor(Spec(), 1, 1, 1).plan(0);
  int timed = 0;
  std::vector<std::pair<int, int>> reported;
  const auto device =
      Probe(request, {.before_each_plan =
                          [&] {
                            ++timed;
                            return absl::OkStatus();
                          },
                      .progress = [&](int done, int of) { reported.emplace_back(done, of); }});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(timed, 2);
  EXPECT_EQ(reported, (std::vector<std::pair<int, int>>{{1, 3}, {2, 3}, {3, 3}}));
  std::set<uint32_t> samples;
  for (const Part& part : PartsIn(device->model(0))) samples.insert(std::get<1>(part));
  EXPECT_EQ(samples, (std::set<uint32_t>{5, 10}));
}

TEST(LayerProbe, TimesSingleMicroBatches) {
  v1::RunSpec spec = Spec();
  spec.set_micro_batches(3);
  const auto device = Probe(RequestFor(spec, 1, 1, 1));
  ASSERT_TRUE(device.ok()) << device.status();
  for (const Part& part : PartsIn(device->model(0))) EXPECT_EQ(std::get<1>(part), 4U);
}

TEST(LayerProbe, TimesUpdatesWithNorms) {
  v1::RunSpec spec = Spec();
  spec.mutable_optimizer()->set_clip_norm(1);
  const auto device = Probe(RequestFor(spec, 4, 2, 1));
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_GT(device->update_seconds(), 0);
}

TEST(LayerProbe, RejectsInvalidRequests) {
  v1::ProbeRequest request = RequestFor(Spec(), 2, 1, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Probe({}).status()));
  request.mutable_plan(0)->mutable_layers(0)->set_layer("no such layer");
  EXPECT_TRUE(absl::IsInvalidArgument(Probe(request).status()));
}

TEST(LayerProbe, ReturnsErrorOfSynchronization) {
  const auto device =
      Probe(RequestFor(Spec(), 2, 1, 1),
            {.before_each_plan = [] { return absl::UnavailableError("rank 1 has failed"); }});
  EXPECT_TRUE(absl::IsUnavailable(device.status())) << device.status();
}

}  // namespace
}  // namespace cadre
