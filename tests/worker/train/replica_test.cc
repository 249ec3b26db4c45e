// The memory of a replica, on an emulated device and on the host, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/backend.h"
#include "plan/search/planner.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/worker/train/small_spec.h"
#include "worker/train/batches.h"
#include "worker/train/replica.h"

namespace cadre {
namespace {

// The message names the purpose, the layer and the current use. fc1 has 45 * 40000 weights of 7.2
// MB in total, gradients and momentum of the same size, and 64 samples of its output take 10 MB.
TEST(ReplicaTest, OutOfMemoryNamesPurposeAndLayer) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  v1::RunSpec spec = SpecWith(kSgd);
  spec.mutable_model()->mutable_layer(4)->mutable_fully_connected()->set_out_features(40000);
  spec.set_batch_per_group(64);
  // Messages by purpose, from devices of increasing size.
  std::map<std::string, std::string> messages;
  for (size_t mega = 8;; mega += 2) {
    ASSERT_LT(mega, 200U);
    const EmulatedRank rank = MakeEmulatedRank({.memory = mega << 20});
    const auto replica = Replica::Make(spec, *MakePlan(spec, 1), *rank.kernels, *transports[0]);
    if (replica.ok()) break;
    ASSERT_EQ(replica.status().code(), absl::StatusCode::kResourceExhausted) << replica.status();
    const std::string message(replica.status().message());
    const size_t begin = message.find(" for ") + 5;
    messages[message.substr(begin, message.find(" (", begin) - begin)] = message;
  }
  for (const auto& [purpose, allocation_label, holds] :
       {std::tuple("weights", "(layer 'fc1' and ", "in use"),
        std::tuple("gradients", "(layer 'fc1' and ", "weights"),
        std::tuple("optimizer's state", "(layer 'fc1' and ", "gradients"),
        std::tuple("activations", "(for batches of 64, most at layer '", "optimizer's state")}) {
    ASSERT_EQ(messages.count(purpose), 1U) << purpose;
    const std::string& message = messages[purpose];
    EXPECT_THAT(message, testing::HasSubstr(allocation_label));
    EXPECT_THAT(message.substr(message.find("in use")), testing::HasSubstr(holds));
  }
}

// In training a row has 3 scores, and in evaluation 500.
constexpr char kSampled[] = R"(
  model {
    tokens { length: 4 }
    layer { name: "embed" embedding { vocabulary: 500 features: 2 } }
    layer { name: "head" fully_connected { out_features: 500 } }
    layer { name: "loss" softmax_cross_entropy { sampling { classes: 2 } } }
  }
  optimizer { sgd {} }
  batch_per_group: 8
)";

void ExpectPlannedMemory(const Replica& replica) {
  const v1::MemoryUse used = replica.Memory(), planned = replica.PlannedMemory();
  EXPECT_EQ(used.activations(), planned.activations());
  EXPECT_EQ(used.buffers(), planned.buffers());
  EXPECT_GE(planned.activations(), 4U * 4 * 500);
}

TEST(ReplicaTest, PreparesTheMemoryOfEvaluation) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  const EmulatedRank device = MakeEmulatedRank(EmulatedCuda::Mode::kInline);
  const std::unique_ptr<Backend> host = MakeReferenceBackend();
  const v1::RunSpec spec = Parse<v1::RunSpec>(kSampled);
  for (Backend* kernels : {host.get(), device.kernels.get()}) {
    const auto replica = Replica::Make(spec, *MakePlan(spec, 1), *kernels, *transports[0]);
    ASSERT_TRUE(replica.ok()) << replica.status();
    ASSERT_EQ((*replica)->EvaluationSamples(), 1);
    ExpectPlannedMemory(**replica);
    const RandomBatch batch(**replica, 8);
    const BatchView step = batch.View(8, 0);
    ASSERT_TRUE((*replica)->Step({&step, 1}, 0.05F, true).ok());
    BatchView evaluated = batch.View(1, 0);
    evaluated.inputs = evaluated.inputs.first(4);
    evaluated.labels = evaluated.labels.first(4);
    ASSERT_TRUE((*replica)->network().Evaluate(evaluated).ok());
    ExpectPlannedMemory(**replica);
  }
}

TEST(ReplicaTest, RejectsTf32) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  const std::unique_ptr<Backend> kernels = MakeReferenceBackend();
  v1::RunSpec spec = SpecWith(kSgd);
  spec.set_precision(v1::RunSpec::TF32);
  const auto replica = Replica::Make(spec, *MakePlan(spec, 1), *kernels, *transports[0]);
  EXPECT_THAT(replica, IsError(kInvalidArgument, "TF32"));
}

}  // namespace
}  // namespace cadre
