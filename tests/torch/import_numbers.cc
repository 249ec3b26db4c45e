#include "tests/torch/import_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "glog/logging.h"
#include "model/graph.h"

namespace cadre {
namespace {

uint64_t HashOf(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

uint64_t BitsOf(uint64_t hash, uint64_t i) {
  uint64_t x = hash + (i + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// In [-1, 1), in steps of 2^-23.
double UniformOf(uint64_t hash, uint64_t i) {
  return static_cast<double>(BitsOf(hash, i) >> 40) / 0x1p23 - 1;
}

float ValueOf(const onnx::Tensor& tensor, uint64_t hash, int64_t fan_in, int64_t i) {
  const double u = UniformOf(hash, i);
  const std::string& name = tensor.name();
  if (tensor.dims_size() >= 2) return u * std::sqrt(3.0 / fan_in);
  if (absl::EndsWith(name, "running_var")) return 1 + 0.5 * std::abs(u);
  if (absl::EndsWith(name, "weight")) return 1 + 0.2 * u;
  return 0.1 * u;
}

}  // namespace

void WriteNumbers(const onnx::Model& file, Fixtures& fixtures, const std::string& folder) {
  std::string bytes;
  std::string path;
  for (const onnx::Tensor& tensor : file.graph().initializer()) {
    if (tensor.data_location() != 1) continue;
    int64_t offset = 0, elements = 1, fan_in = 1;
    for (const onnx::Entry& entry : tensor.external_data()) {
      if (entry.key() == "location") path = entry.value();
      if (entry.key() == "offset") CHECK(absl::SimpleAtoi(entry.value(), &offset));
    }
    for (int d = 0; d < tensor.dims_size(); ++d) {
      elements *= tensor.dims(d);
      if (d > 0) fan_in *= tensor.dims(d);
    }
    if (std::ssize(bytes) < offset + 4 * elements) bytes.resize(offset + 4 * elements);
    std::vector<float> values(elements);
    const uint64_t hash = HashOf(tensor.name());
    for (int64_t i = 0; i < elements; ++i) values[i] = ValueOf(tensor, hash, fan_in, i);
    if (const std::string given = "values/" + tensor.name(); fixtures.Has(given)) {
      values = fixtures.Read(given);
      CHECK_EQ(std::ssize(values), elements) << given;
    }
    std::memcpy(bytes.data() + offset, values.data(), 4 * elements);
  }
  const absl::Status written = WriteFileAtomically(absl::StrCat(folder, "/", path), bytes);
  CHECK(written.ok()) << written;
}

WholeBatch BatchOfNumbers(const v1::Model& model, int64_t samples) {
  const auto graph = Graph::FromModel(model);
  CHECK(graph.ok()) << graph.status();
  WholeBatch batch{.samples = samples};
  const Shape& input = graph->input();
  if (graph->takes_tokens()) {
    // PyTorch does not train the row of a padding token, which is 0 in BERT; ONNX does not name it.
    const uint64_t vocabulary = (*graph)[0].parameters[0].shape[0];
    const auto padded = std::find_if(graph->layers().begin(), graph->layers().end(), HasPadding);
    for (int64_t i = 0; i < samples * input[0]; ++i) {
      batch.inputs.push_back(1 + BitsOf(HashOf("inputs"), i) % (vocabulary - 1));
      const int64_t sample = i / input[0], eighths = BitsOf(HashOf("padding"), i) % 8;
      if (padded != graph->layers().end() && i % input[0] != 0 && eighths < sample) {
        batch.inputs.back() = padded->settings.attention().padding_token();
      }
    }
  } else {
    // Numbered in PyTorch's order, channels first.
    const int64_t height = input[0], width = input[1], channels = input[2];
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t at = 0; at < height * width; ++at) {
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t i = (n * channels + c) * height * width + at;
          batch.inputs.push_back(1.5 * UniformOf(HashOf("inputs"), i));
        }
      }
    }
  }
  for (int64_t i = 0; i < samples * graph->labels_per_sample(); ++i) {
    batch.labels.push_back(BitsOf(HashOf("labels"), i) % graph->classes());
  }
  return batch;
}

Projection ProjectionOf(const std::string& name, const std::vector<float>& values) {
  Projection projection;
  const uint64_t hash = HashOf("signs of " + name);
  for (size_t i = 0; i < values.size(); ++i) {
    projection.norm += 1.0 * values[i] * values[i];
    projection.product += (BitsOf(hash, i) & 1) == 0 ? values[i] : -values[i];
  }
  projection.norm = std::sqrt(projection.norm);
  return projection;
}

}  // namespace cadre
