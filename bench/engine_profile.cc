#include "bench/engine_profile.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// Products alone are worth a flop rate; what else is done is bound by memory.
bool IsProduct(LayerKind kind) {
  return kind == LayerKind::kConvolution || kind == LayerKind::kFullyConnected;
}

// Of a layer's operations over the whole batch, those on this rank: its part of the output, and of
// what each output sums over.
double FlopsHere(const GraphLayer& layer, const LayerRegion& place, int64_t samples) {
  const Box& input = place.inputs[0];
  const auto last = static_cast<size_t>(layer.input().rank());
  const int64_t summed = layer.input()[layer.input().rank() - 1];
  const double outputs = static_cast<double>(place.output.shape().elements()) /
                         static_cast<double>(samples * layer.output.elements());
  // Channels that belong to other groups are not summed over.
  const double inputs =
      layer.groups > 1
          ? 1.0
          : static_cast<double>(input.end[last] - input.begin[last]) / static_cast<double>(summed);
  return static_cast<double>(layer.flops * samples) * outputs * inputs;
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

void EngineProfile::Played(const Tape& tape, const TapeOp& op, absl::Time, double seconds) {
  Row& row = rows_[NameOf(graph_, op)];
  row.seconds += seconds;
  const GraphLayer& layer = graph_[op.layer];
  if (!IsProduct(layer.kind)) return;
  const double forward = FlopsHere(layer, tape.regions[op.layer], tape.samples);
  if (op.kind == TapeOpKind::kForward) row.flops += forward;
  // The gradients of weights and of inputs cost as much as forward each.
  if (op.kind == TapeOpKind::kBackward) {
    row.flops += forward * (op.dx[0] == TapeOp::kNone ? 1 : 2);
  }
}

double EngineProfile::seconds() const {
  double seconds = 0;
  for (const auto& [name, row] : rows_) seconds += row.seconds;
  return seconds;
}

std::string EngineProfile::Json(int steps, double step_seconds, double peak_flops) const {
  std::vector<std::string> entries;
  for (const auto& [name, row] : rows_) {
    std::string entry =
        absl::StrFormat(R"("%s":{"ms":%.3f,"share":%.4f)", name, row.seconds / steps * 1e3,
                        row.seconds / steps / step_seconds);
    if (row.flops > 0) {
      absl::StrAppendFormat(&entry, R"(,"gflops":%.1f,"of_peak":%.3f)",
                            row.flops / row.seconds / 1e9, row.flops / row.seconds / peak_flops);
    }
    entries.push_back(absl::StrCat(entry, "}"));
  }
  return absl::StrCat("{", absl::StrJoin(entries, ","), "}");
}

}  // namespace cadre
