// torch_dump: writes the initial weights and the batches of a run of this folder, for
// make_fixtures.py.
//
// Tensors weights/NAME, and batchSTEP/inputs and batchSTEP/labels for every step; the settings are
// in the file's metadata.
#include <gflags/gflags.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "model/formats/safetensors.h"
#include "model/op_indices.h"
#include "tests/torch/curve.h"

DEFINE_string(spec, "", "the run file");
DEFINE_string(out, "", "safetensors file to write");

namespace cadre {
namespace {

// With as many digits as identify a float32.
std::string Exactly(float value) { return absl::StrFormat("%.9g", value); }

std::map<std::string, std::string> Settings(const Curve& curve) {
  const v1::Sgd& sgd = curve.spec.optimizer().sgd();
  return {{"name", curve.spec.name()},
          {"steps", absl::StrCat(curve.steps())},
          {"rate", Exactly(curve.spec.schedule().base_rate())},
          {"momentum", Exactly(sgd.momentum())},
          {"weight_decay", Exactly(sgd.weight_decay())},
          {"digest", CurveDigest(curve)}};
}

std::vector<NamedShape> Names(const Curve& curve) {
  std::vector<NamedShape> names;
  for (const Parameter& parameter : curve.index.parameters()) {
    names.push_back({absl::StrCat("weights/", parameter.name), parameter.shape});
  }
  const int64_t samples = curve.spec.batch_per_group();
  for (int step = 0; step < curve.steps(); ++step) {
    names.push_back(
        {absl::StrCat("batch", step, "/inputs"), BatchShape(samples, curve.graph.input())});
    names.push_back(
        {absl::StrCat("batch", step, "/labels"), Shape{samples, curve.graph.labels_per_sample()}});
  }
  return names;
}

absl::Status Dump(const std::string& spec, const std::string& out) {
  CADRE_ASSIGN_OR_RETURN(const Curve curve, ReadCurve(spec));
  CADRE_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(out, Names(curve), Settings(curve)));
  CADRE_RETURN_IF_ERROR(writer.Append(InitialWeights(curve.index, curve.spec.seed())));
  for (const WholeBatch& batch : curve.batches) {
    const std::vector<float> labels(batch.labels.begin(), batch.labels.end());
    CADRE_RETURN_IF_ERROR(writer.Append(batch.inputs));
    CADRE_RETURN_IF_ERROR(writer.Append(labels));
  }
  return writer.Finish();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::SetUsageMessage("torch_dump --spec=FILE --out=FILE");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  const absl::Status status = cadre::Dump(FLAGS_spec, FLAGS_out);
  if (!status.ok()) std::fprintf(stderr, "torch_dump: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
