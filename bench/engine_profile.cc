// The observer is called after every operation of the tape, the list of a step's operations
// (plan/tape.h). Times are sums over all steps since Clear.
//
// A rate is work divided by time, for the part of a layer that this rank computes. For matrix
// products and convolutions the work is the floating-point operations of the whole layer, scaled by
// the rank's share of the outputs and of the elements that each output sums over; a backward pass
// that computes the gradients of both weights and input counts twice. For all other operations the
// work is the bytes of inputs and output, each counted once.
#include "bench/engine_profile.h"

#include "absl/strings/str_cat.h"
#include "bench/harness.h"

namespace cadre {
namespace {

// Arithmetic limits the speed of matrix products and convolutions only; memory bandwidth limits the
// rest.
bool IsProduct(LayerKind kind) {
  return kind == LayerKind::kConvolution || kind == LayerKind::kFullyConnected;
}

// Floating-point operations of one layer on this rank: those of the whole batch, scaled by its part
// of the output and by its part of the elements that each output sums over.
double FlopsHere(const GraphLayer& layer, const LayerRegion& region, int64_t samples) {
  const Box& input = region.inputs[0];
  const int64_t last = layer.input().rank();
  const int64_t summed = layer.input()[layer.input().rank() - 1];
  const double outputs = static_cast<double>(region.output.shape().elements()) /
                         static_cast<double>(samples * layer.output.elements());
  // An output of a grouped convolution does not sum over the channels of other groups.
  const double inputs =
      layer.groups > 1
          ? 1.0
          : static_cast<double>(input.end[last] - input.begin[last]) / static_cast<double>(summed);
  return static_cast<double>(layer.flops * samples) * outputs * inputs;
}

// Bytes that the forward pass of a layer must read and write at least once.
double BytesHere(const LayerRegion& region) {
  int64_t elements = region.output.shape().elements();
  for (const Box& input : region.inputs) elements += input.shape().elements();
  return 4.0 * static_cast<double>(elements);
}

std::string NameOf(const Graph& graph, const TapeOp& op) {
  switch (op.kind) {
    case TapeOpKind::kMove:
      return "move";
    case TapeOpKind::kMoveGradient:
      return "move_gradient";
    case TapeOpKind::kAdd:
      return "add_gradients";
    case TapeOpKind::kLoss:
      return "loss";
    case TapeOpKind::kForward:
      return absl::StrCat(LayerKindName(graph[op.layer].kind), "_forward");
    case TapeOpKind::kBackward:
      return absl::StrCat(LayerKindName(graph[op.layer].kind), "_backward");
  }
  return "unknown";
}

}  // namespace

void EngineProfile::Row::operator+=(const Row& other) {
  seconds += other.seconds;
  flops += other.flops;
  bytes += other.bytes;
}

void EngineProfile::Played(const Tape& tape, const TapeOp& op, absl::Time, double seconds) {
  const GraphLayer& layer = graph_[op.layer];
  const LayerRegion& region = tape.regions[op.layer];
  Row row{.seconds = seconds};
  const bool backward = op.kind == TapeOpKind::kBackward;
  if (backward || op.kind == TapeOpKind::kForward) {
    // Each of the gradients of weights and of inputs costs as much as the forward pass.
    const bool inputs = backward && !op.dx.empty() && op.dx[0] != TapeOp::kNone;
    const int passes = inputs ? 2 : 1;
    if (IsProduct(layer.kind)) row.flops = passes * FlopsHere(layer, region, tape.samples);
    row.bytes = passes * BytesHere(region);
  }
  const std::string kind = NameOf(graph_, op);
  kinds_[kind] += row;
  const std::string name = absl::StrCat(layer.name, " ", kind);
  const auto [found, inserted] = layers_.try_emplace(name);
  if (inserted) order_.push_back(name);
  found->second += row;
}

void EngineProfile::Clear() {
  kinds_.clear();
  order_.clear();
  layers_.clear();
}

double EngineProfile::seconds() const {
  double seconds = 0;
  for (const auto& [name, row] : kinds_) seconds += row.seconds;
  return seconds;
}

nlohmann::ordered_json EngineProfile::ByKind(int steps, double step_seconds,
                                             double peak_flops) const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, row] : kinds_) {
    json[name] = {{"ms", Rounded(row.seconds / steps * 1e3, 3)},
                  {"share", Rounded(row.seconds / steps / step_seconds, 4)}};
    if (row.flops == 0) continue;
    json[name]["gflops"] = Rounded(row.flops / row.seconds / 1e9, 1);
    json[name]["of_peak"] = Rounded(row.flops / row.seconds / peak_flops, 3);
  }
  return json;
}

nlohmann::ordered_json EngineProfile::ByLayer(int steps) const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const std::string& name : order_) {
    const Row& row = layers_.at(name);
    json.push_back({{"op", name}, {"ms", Rounded(row.seconds / steps * 1e3, 3)}});
    if (row.flops > 0) {
      json.back()["gflops"] = Rounded(row.flops / row.seconds / 1e9, 1);
    } else if (row.bytes > 0) {
      json.back()["gbs"] = Rounded(row.bytes / row.seconds / 1e9, 1);
    }
  }
  return json;
}

}  // namespace cadre
