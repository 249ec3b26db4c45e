// Imported networks compute what PyTorch computes: logits, loss, gradients and one training step.
//
// Folder imports has each network as ONNX without its weights. They are numbers that follow from
// the names of the tensors (import_numbers.h), and make_imports.py computed the expected results of
// PyTorch, in float64, from the same numbers. Of each tensor's gradient it stored the norm and the
// product with pseudo-random signs, and the same of the tensor after one step of SGD.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/import/import.h"
#include "comm/transport/thread_transport.h"
#include "glog/logging.h"
#include "model/run_file.h"
#include "model/validate.h"
#include "plan/search/planner.h"
#include "tests/base/temporary_folder.h"
#include "tests/equivalence/ranks.h"
#include "tests/torch/fixtures.h"
#include "tests/torch/import_numbers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// The fixtures are exact. The first two limits are some roundings of float32 in networks of up to
// 120 layers. Where PyTorch itself deviates in float32, a few times its deviation is allowed.
constexpr double kLogitTolerance = 5e-5;
constexpr double kGradientTolerance = 5e-4;
constexpr double kRoundings = 5;
constexpr float kRate = 0.125F;

std::string Folder() { return FixturesFolder() + "/imports"; }

// The mask of padding is the second input of one network.
ImportOptions OptionsFor(const std::string& name) {
  if (name == "bert_padded") return {.padding_token = 0};
  return {};
}

// The model of a fixture, with its weights written beside a copy of it.
absl::StatusOr<ImportedModel> Import(const std::string& name) {
  const TemporaryFolder folder;
  Fixtures fixtures("imports/" + name + ".safetensors");
  CADRE_ASSIGN_OR_RETURN(const onnx::Model file, ReadOnnx(Folder() + "/" + name + ".onnx"));
  WriteNumbers(file, fixtures, folder.path());
  return ImportOnnx(file, folder.path(), OptionsFor(name));
}

v1::RunSpec SpecOf(const ImportedModel& imported, int64_t samples) {
  v1::RunSpec spec;
  *spec.mutable_model() = imported.model;
  spec.set_name("import");
  spec.set_batch_per_group(samples);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_schedule()->set_base_rate(kRate);
  spec.mutable_cluster()->set_groups(1);
  spec.mutable_cluster()->set_ranks_per_group(1);
  return spec;
}

// One replica on one rank, with the weights of the import.
class Single {
 public:
  static absl::StatusOr<std::unique_ptr<Single>> Make(const ImportedModel& imported,
                                                      int64_t samples) {
    auto single = std::unique_ptr<Single>(new Single);
    const v1::RunSpec spec = SpecOf(imported, samples);
    CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(spec, 1));
    CADRE_ASSIGN_OR_RETURN(single->replica_,
                           Replica::Make(spec, plan, *single->kernels_, *single->transports_[0]));
    std::map<std::string, const NamedTensor*> tensors;
    for (const NamedTensor& tensor : imported.weights) tensors[tensor.name] = &tensor;
    std::vector<float> weights;
    for (const Parameter& parameter : single->replica_->index().parameters()) {
      const auto& values = tensors.at(parameter.name)->values;
      weights.insert(weights.end(), values.begin(), values.end());
    }
    for (const Owned& owned : single->replica_->owned()) {
      std::copy_n(weights.begin() + owned.positions.begin, owned.values.size(),
                  owned.values.begin());
    }
    CADRE_RETURN_IF_ERROR(single->replica_->StoreOwned());
    CADRE_RETURN_IF_ERROR(single->replica_->flow().Gather());
    return single;
  }

  Replica& replica() { return *replica_; }

  // The parameters by name.
  std::map<std::string, std::vector<float>> Weights() {
    std::map<std::string, std::vector<float>> named;
    for (const Owned& owned : replica_->owned()) {
      for (const Parameter& parameter : replica_->index().parameters()) {
        if (parameter.offset < owned.positions.begin || parameter.end() > owned.positions.end) {
          continue;
        }
        const auto begin = owned.values.begin() + (parameter.offset - owned.positions.begin);
        named[parameter.name].assign(begin, begin + parameter.shape.elements());
      }
    }
    return named;
  }

 private:
  Single() = default;

  const std::unique_ptr<Backend> kernels_ = MakeCpuBackend(1);
  const std::vector<std::unique_ptr<Transport>> transports_ =
      MakeThreadTransports(1, absl::Seconds(1));
  std::unique_ptr<Replica> replica_;
};

// log(softmax(logits)) of one sample: the loss of every label. Labels of tokens are all equal.
std::vector<float> LogProbabilities(Single& single, const WholeBatch& batch, int64_t sample) {
  Replica& replica = single.replica();
  const int64_t per = std::ssize(batch.inputs) / batch.samples;
  const int64_t labels = replica.graph().labels_per_sample();
  std::vector<float> values;
  for (int32_t label = 0; label < replica.graph().classes(); ++label) {
    const std::vector<int32_t> all(labels, label);
    const auto loss =
        replica.network().Evaluate({.samples = 1,
                                    .inputs = std::span(batch.inputs).subspan(sample * per, per),
                                    .labels = all});
    CHECK(loss.ok()) << loss.status();
    values.push_back(-loss->loss / labels);
  }
  return values;
}

class Imports : public testing::TestWithParam<const char*> {};

TEST_P(Imports, EqualTorch) {
  const std::string name = GetParam();
  Fixtures fixtures("imports/" + name + ".safetensors");
  const auto imported = Import(name);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const WholeBatch batch = BatchOfNumbers(imported->model, fixtures.ShapeOf("logits")[0]);

  auto single = Single::Make(*imported, batch.samples);
  ASSERT_TRUE(single.ok()) << single.status();
  std::vector<float> logits;
  for (int64_t sample = 0; sample < batch.samples; ++sample) {
    const std::vector<float> values = LogProbabilities(**single, batch, sample);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  const double of_logits = RelativeDifference(logits, fixtures.Read("logits"));
  EXPECT_LT(of_logits, kLogitTolerance);

  const auto before = (*single)->Weights();
  const BatchView view{.samples = batch.samples, .inputs = batch.inputs, .labels = batch.labels};
  const auto loss = (*single)->replica().Step({&view, 1}, kRate);
  ASSERT_TRUE(loss.ok()) << loss.status();
  ASSERT_TRUE((*single)->replica().AwaitOperations().ok());
  EXPECT_NEAR(loss->loss / loss->samples / fixtures.Read("loss")[0], 1, kLogitTolerance);
  const auto after = (*single)->Weights();

  // The change of each original tensor, and the tensor itself, against PyTorch's.
  const auto read = [](const auto& from) {
    return [&from](const std::string& name) -> absl::StatusOr<std::vector<float>> {
      return from.at(name);
    };
  };
  const auto old_tensors = ExportTensors(imported->model, read(before));
  const auto new_tensors = ExportTensors(imported->model, read(after));
  ASSERT_TRUE(old_tensors.ok() && new_tensors.ok());
  size_t compared = 0;
  double worst = 0, largest = 0;
  for (const std::string& tensor : fixtures.NamesUnder("changes/")) {
    largest = std::max<double>(largest, fixtures.Read("changes/" + tensor)[0]);
  }
  for (size_t t = 0; t < new_tensors->tensors.size(); ++t) {
    const NamedTensor &was = old_tensors->tensors[t], &is = new_tensors->tensors[t];
    const std::vector<float> expected = fixtures.Read("changes/" + is.name);
    std::vector<float> change;
    for (size_t i = 0; i < is.values.size(); ++i) change.push_back(was.values[i] - is.values[i]);
    // Numbers near 1 are rounded to 6e-8, and so are their differences. Some gradients are zero
    // but for rounding, such as those of a shift before a norm.
    const double scale = std::max<double>(expected[0], 1e-3 * largest);
    const double allowed = kGradientTolerance * scale + kRoundings * expected[2] +
                           1e-7 * std::sqrt(1.0 * change.size());
    const Projection got = ProjectionOf(is.name, change);
    for (const double difference : {got.norm - expected[0], got.product - expected[1]}) {
      EXPECT_LT(std::abs(difference), allowed) << is.name << " of " << expected[0];
      worst = std::max(worst, std::abs(difference) / scale);
    }
    ++compared;
  }
  EXPECT_EQ(compared + new_tensors->incomplete.size(), fixtures.NamesUnder("changes/").size());
  RecordProperty("logits", absl::StrFormat("%.1e", of_logits));
  RecordProperty("changes", absl::StrFormat("%.1e in %d tensors", worst, compared));
}

// The text has comments, is read again as the same model, and is valid.
TEST_P(Imports, RunFileIsValid) {
  const auto imported = Import(GetParam());
  ASSERT_TRUE(imported.ok()) << imported.status();
  const auto run = ParseRunSpec("run.textproto", RunFileOf(*imported, "net", "w.safetensors"));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->spec.model().SerializeAsString(), imported->model.SerializeAsString());
  for (const Problem& problem : FindProblems(run->spec)) {
    // There is no data of token sequences with one label each.
    const std::string name = GetParam();
    if ((name.starts_with("bert") || name.starts_with("encoder")) &&
        problem.field.ends_with("embedding.vocabulary")) {
      continue;
    }
    ADD_FAILURE() << problem.ToString();
  }
}

// Every tensor of the file comes back as it was.
TEST_P(Imports, ExportRestoresTensors) {
  const std::string name = GetParam();
  const TemporaryFolder folder;
  const auto file = ReadOnnx(Folder() + "/" + name + ".onnx");
  ASSERT_TRUE(file.ok()) << file.status();
  Fixtures fixtures("imports/" + name + ".safetensors");
  WriteNumbers(*file, fixtures, folder.path());
  const auto imported = ImportOnnx(*file, folder.path(), OptionsFor(name));
  ASSERT_TRUE(imported.ok()) << imported.status();
  std::map<std::string, std::vector<float>> weights;
  for (const NamedTensor& tensor : imported->weights) weights[tensor.name] = tensor.values;
  const auto exported = ExportTensors(
      imported->model, [&](const std::string& name) -> absl::StatusOr<std::vector<float>> {
        return weights.at(name);
      });
  ASSERT_TRUE(exported.ok()) << exported.status();
  std::map<std::string, const NamedTensor*> by_name;
  for (const NamedTensor& tensor : exported->tensors) by_name[tensor.name] = &tensor;
  size_t found = 0;
  for (const onnx::Tensor& tensor : file->graph().initializer()) {
    const auto decoded = DecodeTensor(tensor, folder.path());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const auto exported_tensor = by_name.find(tensor.name());
    if (exported_tensor == by_name.end()) continue;
    EXPECT_EQ(exported_tensor->second->values, decoded->floats) << tensor.name();
    ++found;
  }
  EXPECT_EQ(found, exported->tensors.size());
}

INSTANTIATE_TEST_SUITE_P(Networks, Imports,
                         testing::Values("alexnet", "bert", "bert_padded", "crnn", "densenet121",
                                         "encoder_padded", "gpt2", "mobilenet_v2", "mobilenet_v3",
                                         "resnet18", "resnet50", "squeezenet1_1", "vgg11",
                                         "vit_b_16"),
                         [](const auto& info) { return std::string(info.param); });

// A tied weight has one gradient, from both of its layers, whatever the number of ranks.
TEST(TiedWeights, EqualOnTwoRanks) {
  const auto imported = Import("gpt2");
  ASSERT_TRUE(imported.ok()) << imported.status();
  const v1::RunSpec spec = SpecOf(*imported, 4);
  std::vector<GroupResult> results;
  for (const int ranks : {1, 2}) {
    const auto plan = MakePlan(spec, ranks);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto graph = Graph::FromModel(spec.model());
    Ranks group([] { return MakeCpuBackend(1); });
    auto result =
        group.Train(spec, *plan, {.steps = 3, .batches = RandomBatches(*graph, 4, /*seed=*/1)});
    ASSERT_TRUE(result.ok()) << result.status();
    results.push_back(*std::move(result));
  }
  const auto index = ParameterIndex::FromModel(spec.model());
  EXPECT_LT(RelativeError(*index, InitialWeights(*index, spec.seed()), results[0].weights,
                          results[1].weights),
            1e-3);
}

}  // namespace
}  // namespace cadre
