// Requests and questions (lab/plan_question.h) for the tests of plan reports.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "lab/plan_question.h"
#include "model/run_file.h"
#include "tests/model/testing.h"
#include "tests/plan/profile.h"

namespace cadre::testing {

inline std::unique_ptr<PlanQuestion> QuestionOf(PlanRequest request) {
  auto question = MakePlanQuestion(std::move(request));
  EXPECT_TRUE(question.ok()) << question.status();
  return *std::move(question);
}

// Requests a plan for a zoo model with strategy `auto`, on the link of Gholami et al.: 2 us, 6
// GB/s.
inline PlanRequest ZooRequest(const std::string& model, int workers, int batch) {
  const auto file = ReadRunSpec(ZooFolder() + "/" + model + ".textproto");
  EXPECT_TRUE(file.ok()) << file.status();
  PlanRequest request{.spec = file->spec, .workers = workers, .sensitivity = false};
  request.spec.set_batch_per_group(batch);
  request.spec.mutable_cluster()->set_ranks_per_group(workers);
  request.link = {.alpha = 2e-6, .bandwidth = 6e9};
  return request;
}

// Requests a plan for two small layers in two groups that average 1,068 parameters every four
// steps, with 32 samples per step, 256 per epoch, and a link of 50 us and 1.25 GB/s.
inline PlanRequest SmallRequest(int workers) {
  PlanRequest request{.spec = SpecOf(R"(
      model {
        input { channels: 1 height: 8 width: 8 }
        layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 } }
        layer { name: "fc1" fully_connected { out_features: 4 } }
        layer { name: "loss" softmax_cross_entropy {} }
      }
      batch_per_group: 32
      optimizer { sgd { momentum: 0.9 } }
      averaging { every_steps: 4 }
      cluster { groups: 2 })"),
                      .workers = workers,
                      .flops = 1e9,
                      .samples = 256,
                      .sensitivity = false};
  request.spec.mutable_cluster()->set_ranks_per_group(workers);
  request.link = {.alpha = 50e-6, .bandwidth = 1.25e9};
  return request;
}

// Requests a plan for two branches and two workers on a slow link: with data parallelism the
// workers wait for gradients, so a step of 8 samples is fastest if each has one branch.
inline PlanRequest BranchesRequest() {
  PlanRequest request{.spec = SpecOf(kTwoBranches),
                      .workers = 2,
                      .flops = 1e9,
                      .samples = 256,
                      .sensitivity = false};
  request.spec.mutable_cluster()->set_ranks_per_group(2);
  request.link = {.alpha = 1e-3, .bandwidth = 1e7};
  return request;
}

// Pins data parallelism.
inline void PinDataParallel(PlanRequest& request) {
  request.spec.mutable_cluster()->set_model_ranks(1);
  request.spec.mutable_cluster()->set_space_ranks(1);
}

inline void PinLayer(const std::string& layer, PlanRequest& request) {
  v1::LayerPin& pin = *request.spec.mutable_cluster()->add_layer();
  pin.set_layer(layer);
  pin.set_parallelism(v1::LayerPin::MODEL);
}

// Two hosts of two workers, on the link of SmallRequest.
inline v1::ClusterProfile TwoHosts() {
  return ProfileOf(R"(
      host { name: "a" count: 2 workers: 2 device: "d" inside { alpha: 1e-6 beta: 1e-10 } }
      default_link { alpha: 50e-6 beta: 8e-10 }
      device { name: "d" flops: 1e11 })");
}

// A table of epochs to accuracy 0.9, from pairs of a number of workers and its epochs; 0 epochs:
// the target is not reached.
inline v1::EpochsTable Epochs(std::initializer_list<std::pair<int, double>> entries,
                              int batch_per_worker = 8) {
  v1::EpochsTable table;
  table.set_target_accuracy(0.9F);
  table.set_batch_per_worker(batch_per_worker);
  for (const auto& [workers, epochs] : entries) {
    v1::EpochsEntry& entry = *table.add_entry();
    entry.set_workers(workers);
    entry.set_epochs(epochs > 0 ? epochs : 100);
    entry.set_reached(epochs > 0);
  }
  return table;
}

}  // namespace cadre::testing
