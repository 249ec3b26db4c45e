#include "tests/torch/curve.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/random.h"
#include "base/status.h"
#include "model/run_file.h"

namespace cadre {
namespace {

// Substreams of random numbers, one for each property of a sample.
enum Draw : uint64_t { kLabel = 0, kBreaks = 1, kToken = 2, kCenters = 1000 };

uint64_t BitsOf(const Curve& curve, uint64_t substream, int64_t at) {
  return RandomBits(curve.spec.seed(), RandomStream::kTest, substream, at);
}

// Appends sample `number` of the run.
void AppendImage(const Curve& curve, int64_t number, WholeBatch& batch) {
  const uint64_t seed = curve.spec.seed();
  const uint64_t classes = curve.graph.classes();
  const uint64_t label = BitsOf(curve, kLabel, number) % classes;
  const int64_t elements = curve.graph.input().elements();
  for (int64_t i = 0; i < elements; ++i) {
    const float center = RandomNormal(seed, RandomStream::kTest, kCenters + label, i);
    const float noise =
        RandomNormal(seed, RandomStream::kTest, kCenters + classes, number * elements + i);
    batch.inputs.push_back(center + 0.5F * noise);
  }
  batch.labels.push_back(label);
}

void AppendTokens(const Curve& curve, int64_t number, WholeBatch& batch) {
  const uint64_t vocabulary = curve.graph.classes();
  const int64_t length = curve.graph.input()[0];
  const int64_t first = number * (length + 1);
  uint64_t token = BitsOf(curve, kToken, first) % vocabulary;
  for (int64_t i = 1; i <= length; ++i) {
    batch.inputs.push_back(token);
    const bool breaks = BitsOf(curve, kBreaks, first + i) % 4 == 0;
    token = (breaks ? BitsOf(curve, kToken, first + i) : 5 * token + 3) % vocabulary;
    if (i > length - curve.graph.labels_per_sample()) batch.labels.push_back(token);
  }
}

WholeBatch BatchOf(const Curve& curve, int64_t step) {
  WholeBatch batch{.samples = curve.spec.batch_per_group()};
  for (int64_t i = 0; i < batch.samples; ++i) {
    const int64_t number = step * batch.samples + i;
    if (curve.graph.takes_tokens()) {
      AppendTokens(curve, number, batch);
    } else {
      AppendImage(curve, number, batch);
    }
  }
  return batch;
}

}  // namespace

absl::StatusOr<Curve> ReadCurve(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpec(path));
  const v1::RunSpec& spec = file.spec;
  if (!spec.optimizer().has_sgd() || spec.optimizer().sgd().nesterov() ||
      spec.optimizer().clip_norm() != 0 || spec.optimizer().decay_all() ||
      spec.schedule().warmup_steps() != 0 ||
      spec.schedule().decay_case() != v1::Schedule::DECAY_NOT_SET || spec.stop().steps() == 0 ||
      spec.batch_per_group() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must specify some steps of SGD at a constant rate"));
  }
  CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
  ParameterIndex index = ParameterIndex::FromGraph(graph);
  Curve curve{spec, std::move(graph), std::move(index), {}};
  for (int step = 0; step < curve.steps(); ++step) curve.batches.push_back(BatchOf(curve, step));
  return curve;
}

std::string CurveDigest(const Curve& curve) {
  const std::vector<float> weights = InitialWeights(curve.index, curve.spec.seed());
  uint64_t digest = Digest(weights, 0);
  uint64_t position = weights.size();
  for (const WholeBatch& batch : curve.batches) {
    const std::vector<float> labels(batch.labels.begin(), batch.labels.end());
    digest += Digest(batch.inputs, position);
    position += batch.inputs.size();
    digest += Digest(labels, position);
    position += labels.size();
  }
  return DigestHex(digest);
}

}  // namespace cadre
