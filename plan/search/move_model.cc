// Costs of moves in closed form.
//
// A move (tensor/move.h) is one exchange in which every rank receives what it needs and does not
// hold, from every addend if the tensor is a partial sum; or, for a sum that several ranks need,
// two exchanges (a reduce-scatter along some dimension, then a gather), whichever is cheaper by
// MoveCost. Planning it takes time for every pair of ranks, which the search cannot afford: it
// needs the cost of every pair of layouts of every two adjacent layers on every mesh.
//
// The idea. A layout splits dimensions independently, so what the busiest rank needs, holds and
// sends is a product over dimensions, and the factor of a dimension follows from the axes that
// split it before and after (SplitOf): a common prefix of axes splits it equally, and what follows
// in one list only is gathered or cut. Parts are treated as equal and fractions are kept. Only
// halos depend on a rank's position; they are counted part by part (ToHalo, FromHalo). For one
// dimension and one axis the result is the table of OneFlow (Yuan et al. 2021, arXiv:2110.15032):
// gather (p-1)/p, all-to-all (p-1)/p of a part, reduce-scatter (p-1)/p of the elements per rank.
//
// Seconds. beta is charged for each byte of the busier direction, gamma for received addends. alpha
// is charged once per doubling of the participants, as for the collectives of the papers, because
// workers send all messages of an exchange simultaneously, so their latencies overlap. For an
// all-to-all, no algorithm is optimal both in messages and in bytes (Bruck et al., "Efficient
// algorithms for all-to-all communications in multiport message-passing systems", 1997), so alpha
// is charged for every message.
//
// Accuracy. If splits divide evenly, the estimated elements equal those that tapes move, with one
// exception: if a dimension is split before and after the move and already the first axes differ
// (misaligned), the elements that a rank holds and needs depend on the rank, and the estimate is
// within 35 % (move_model_test).
#include "plan/search/move_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "model/ops/operation.h"
#include "plan/cost/communication_cost.h"
#include "plan/recomputation.h"
#include "plan/tape.h"
#include "tensor/interval.h"
#include "tensor/move.h"

namespace cadre {

// The numbers of rows (or columns) of a dimension with a halo that one rank needs and holds.
struct RowNeeds {
  // Summed over the ranks that hold some of it.
  double needs = 0;
  double has = 0;
  double peers = 1;
};

namespace {

// The splits of one dimension before and after a move. Both begin with the same axes (the common
// prefix, possibly empty); the axes after it differ.
struct DimensionSplit {
  // The number of parts before and after the move, and the factor of it due to axes beyond the
  // common prefix.
  double from_parts = 1;
  double to_parts = 1;
  double from_beyond = 1;
  double to_beyond = 1;
  // The factor of to_beyond along axes that do not distinguish senders.
  double outside = 1;

  // Whether both have axes beyond the common prefix, so that the parts of a rank before and after
  // the move may be disjoint.
  bool misaligned() const { return from_beyond > 1 && to_beyond > 1; }
  bool same() const { return from_beyond == 1 && to_beyond == 1; }
};

// The number of parts of a split into `a` parts that one part of a split into `b` may overlap.
double OverlappingParts(double a, double b) {
  if (b == 1) return a;
  if (a == 1) return 1;
  const int64_t parts[] = {std::llround(a), std::llround(b)};
  const double common = std::gcd(parts[0], parts[1]);
  const double a_part = a / common;
  const double b_part = b / common;
  return std::ceil((b_part - 1 + a_part) / b_part);
}

DimensionSplit SplitOf(const CompactMesh& mesh, const AxisList& from, const AxisList& to,
                       AxisSet group) {
  DimensionSplit cut;
  int common = 0;
  while (common < from.count && common < to.count && from[common] == to[common]) {
    const double size = mesh.size(from[common++]);
    cut.from_parts *= size;
    cut.to_parts *= size;
  }
  for (int i = common; i < from.count; ++i) cut.from_beyond *= mesh.size(from[i]);
  for (int i = common; i < to.count; ++i) {
    cut.to_beyond *= mesh.size(to[i]);
    if ((group >> to[i] & 1) == 0) cut.outside *= mesh.size(to[i]);
  }
  cut.from_parts *= cut.from_beyond;
  cut.to_parts *= cut.to_beyond;
  return cut;
}

int64_t CommonSize(const Interval& a, const Interval& b) {
  return std::max<int64_t>(0, Intersect(a, b).size());
}

Interval PartOf(int64_t n, int64_t i, int64_t parts) {
  return {PartBegin(n, i, parts), PartBegin(n, i + 1, parts)};
}

// The input rows that part i of the output needs.
Interval NeededRows(const WindowRows& rows, int64_t i, int64_t parts) {
  const Interval out = PartOf(rows.out, i, parts);
  const Interval in = PartOf(rows.in, i, parts);
  if (parts == 1) return in;
  if (out.begin >= out.end) return {in.begin, in.begin};
  const int64_t begin = std::clamp<int64_t>(out.begin * rows.stride - rows.padding, 0, rows.in);
  const int64_t end =
      std::clamp<int64_t>((out.end - 1) * rows.stride - rows.padding + rows.reach, begin, rows.in);
  return {begin, end};
}

// A lower bound on the number of the part that contains this element.
int64_t PartAt(int64_t n, int64_t element, int64_t parts) {
  return std::max<int64_t>(0, element * parts / n - 1);
}

// A lower bound on the number of the first part of the output that needs this input element.
int64_t FirstThatNeeds(const WindowRows& rows, int64_t element, int64_t parts) {
  const int64_t first = (element + rows.padding - rows.reach) / rows.stride;
  return PartAt(rows.out, std::clamp<int64_t>(first, 0, rows.out), parts);
}

// Visits all pairs (part with halo, part without halo) that some rank holds. If one split refines
// the other, the finer part determines the coarser one; if they are misaligned, the second is -1.
template <typename Visit>
void ForPairs(int64_t wide, int64_t plain, bool misaligned, Visit visit) {
  if (misaligned) {
    for (int64_t i = 0; i < wide; ++i) visit(i, int64_t{-1});
  } else if (wide >= plain) {
    for (int64_t i = 0; i < wide; ++i) visit(i, i / (wide / plain));
  } else {
    for (int64_t j = 0; j < plain; ++j) visit(j / (plain / wide), j);
  }
}

// From parts without halos to parts with halos.
std::vector<RowNeeds> ToHalo(const WindowRows& rows, const DimensionSplit& cut) {
  std::vector<RowNeeds> needs_by_rank;
  const int64_t parts = cut.from_parts;
  needs_by_rank.reserve(std::max(cut.from_parts, cut.to_parts));
  ForPairs(cut.to_parts, parts, cut.misaligned(), [&](int64_t i, int64_t j) {
    const Interval needed = NeededRows(rows, i, cut.to_parts);
    RowNeeds reach{.peers = 0};
    reach.needs = needed.size();
    for (int64_t p = PartAt(rows.in, needed.begin, parts); p < parts; ++p) {
      const Interval part = PartOf(rows.in, p, parts);
      if (part.begin >= needed.end) break;
      if (CommonSize(needed, part) > 0) ++reach.peers;
    }
    if (j >= 0) reach.has = CommonSize(needed, PartOf(rows.in, j, parts));
    needs_by_rank.push_back(reach);
  });
  return needs_by_rank;
}

// From parts with halos, which are addends where they overlap, to parts without.
std::vector<RowNeeds> FromHalo(const WindowRows& rows, const DimensionSplit& cut) {
  std::vector<RowNeeds> needs_by_rank;
  needs_by_rank.reserve(std::max(cut.from_parts, cut.to_parts));
  const int64_t wide = cut.from_parts;
  const int64_t plain = cut.to_parts;
  const auto reach_of = [&](const Interval& part, const Interval* own) {
    RowNeeds reach{.peers = 0};
    for (int64_t i = FirstThatNeeds(rows, part.begin, wide); i < wide; ++i) {
      const Interval needed = NeededRows(rows, i, wide);
      if (needed.begin >= part.end) break;
      const int64_t common = CommonSize(needed, part);
      reach.needs += common;
      if (common > 0) ++reach.peers;
    }
    if (own != nullptr) reach.has = CommonSize(*own, part);
    return reach;
  };
  if (cut.misaligned()) {
    for (int64_t j = 0; j < plain; ++j) {
      needs_by_rank.push_back(reach_of(PartOf(rows.in, j, plain), nullptr));
    }
    return needs_by_rank;
  }
  ForPairs(wide, plain, false, [&](int64_t i, int64_t j) {
    const Interval own = NeededRows(rows, i, wide);
    needs_by_rank.push_back(reach_of(PartOf(rows.in, j, plain), &own));
  });
  return needs_by_rank;
}

AxisSet DifferingAxes(const CompactLayout& from, const CompactLayout& to) {
  AxisSet differ = from.partial;
  for (size_t d = 0; d < kMaxDimensions; ++d) {
    if (from.split[d] == to.split[d]) continue;
    differ |= SetOf(from.split[d]) | SetOf(to.split[d]);
  }
  return differ;
}

double Doublings(double members) { return std::ceil(std::log2(members) - 1e-9); }

// The halo of this dimension; null for dimensions without one.
const WindowRows* HaloIn(const Halo& halo, int dimension) {
  if (dimension == Halo::kRowDimension) return &halo.rows;
  if (dimension == Halo::kColumnDimension) return &halo.columns;
  return nullptr;
}

bool IsPlain(const WindowRows& rows) {
  return rows.reach == 1 && rows.stride == 1 && rows.padding == 0;
}

}  // namespace

MoveEstimate& MoveEstimate::operator+=(const MoveEstimate& other) {
  elements += other.elements;
  seconds += other.seconds;
  return *this;
}

Halo HaloOf(const GraphLayer& layer) {
  Halo halo;
  if (!Describe(layer.kind).has_window) return halo;
  const Window& window = layer.window;
  halo.rows = {layer.input()[0], layer.output[0], window.reach_height(), window.stride_height,
               window.padding_height};
  halo.columns = {layer.input()[1], layer.output[1], window.reach_width(), window.stride_width,
                  window.padding_width};
  halo.needed = !IsPlain(halo.rows) || !IsPlain(halo.columns);
  return halo;
}

// The costs of one exchange on the busiest rank.
struct MoveModel::Exchanged {
  double received = 0;
  double sent = 0;
  double in_messages = 0;
  double out_messages = 0;
  double copied = 0;
  double added = 0;
  // Ranks give up a part of one dimension for a part of another.
  bool all_to_all = false;
  AxisSet axes = 0;

  // The cost by which tensor/move.h chooses between one exchange and two.
  double Cost(const MoveCost& cost) const {
    return std::max(in_messages * cost.elements_per_message + received,
                    out_messages * cost.elements_per_message + sent);
  }
};

MoveModel::MoveModel(const Mesh& mesh, const HardwareModel& hardware)
    : mesh_(mesh), compact_(mesh), hardware_(hardware) {}

const LinkProfile& MoveModel::LinkOf(AxisSet axes) const {
  const LinkProfile*& link = links_[axes];
  if (link == nullptr) link = &hardware_.LinkOf(mesh_, compact_.Names(axes));
  return *link;
}

// What a rank needs, holds and sends in one exchange.
struct MoveModel::Shares {
  double addends;
  // Elements, as products over the dimensions without a halo.
  double needs = 1, has = 1, sends = 1;
  double in_peers;
  double out_peers;
  double copies = out_peers;
  bool misaligned = false;
  // Whether messages are not contiguous in the sender's, or in the receiver's, memory.
  bool packed = false, unpacked = addends > 1;
  bool changes = addends > 1;
  bool cuts = false, joins = false;
  AxisSet axes;
  std::vector<RowNeeds> halos[2] = {};  // of rows and columns

  // `adds_halo`: received halos are added.
  Exchanged Busiest(bool adds_halo) const;
};

MoveModel::Exchanged MoveModel::Shares::Busiest(bool adds_halo) const {
  Exchanged exchanged{.all_to_all = cuts && joins, .axes = axes};
  if (!changes) return exchanged;
  static constexpr RowNeeds kNothing = {.needs = 1, .has = 1, .peers = 1};
  const auto reaches_of = [&](const std::vector<RowNeeds>& halo_reaches) {
    return halo_reaches.empty() ? std::span<const RowNeeds>(&kNothing, 1) : halo_reaches;
  };
  double own = 0;
  for (const RowNeeds& row : reaches_of(halos[0])) {
    for (const RowNeeds& column : reaches_of(halos[1])) {
      const double held = misaligned ? 0 : has * row.has * column.has;
      const double elements = needs * addends * row.needs * column.needs - held;
      const double peers = in_peers * row.peers * column.peers - (held > 0 ? 1 : 0);
      exchanged.received = std::max(exchanged.received, elements);
      exchanged.in_messages = std::max(exchanged.in_messages, peers);
      own = std::max(own, held);
    }
  }
  const bool has_halo = !halos[0].empty() || !halos[1].empty();
  if (has_halo) {
    // Halos are symmetric between neighbours.
    exchanged.sent = exchanged.received;
    exchanged.out_messages = exchanged.in_messages;
  } else {
    exchanged.sent = std::max(0.0, sends * copies - own);
    exchanged.out_messages = std::max(0.0, out_peers - (own > 0 ? 1 : 0));
  }
  exchanged.copied = own + (packed ? exchanged.sent : 0) + (unpacked ? exchanged.received : 0);
  if (addends > 1 || (has_halo && adds_halo)) exchanged.added = exchanged.received;
  return exchanged;
}

MoveModel::Exchanged MoveModel::Exchange(const Extents& whole, const CompactLayout& from,
                                         const CompactLayout& to, const Halo& halo,
                                         HaloAt at) const {
  const AxisSet group = SplittingAxes(from) | from.partial;
  const double addends = compact_.Ranks(from.partial);
  Shares shares{.addends = addends,
                .in_peers = addends,
                .out_peers = compact_.Ranks(group & ~SplittingAxes(to)),
                .axes = DifferingAxes(from, to)};
  for (int d = 0; d < whole.count; ++d) {
    const DimensionSplit cut = SplitOf(compact_, from.split[d], to.split[d], group);
    shares.misaligned = shares.misaligned || cut.misaligned();
    shares.changes = shares.changes || !cut.same();
    shares.cuts = shares.cuts || cut.to_beyond > 1;
    shares.joins = shares.joins || cut.from_beyond > 1;
    if (d > 0) {
      shares.packed = shares.packed || cut.to_beyond > 1;
      shares.unpacked = shares.unpacked || cut.from_beyond > 1;
    }
    const double parts = at == HaloAt::kTo ? cut.to_parts : cut.from_parts;
    const WindowRows* rows = at == HaloAt::kNone ? nullptr : HaloIn(halo, d);
    if (rows != nullptr && parts > 1 && !IsPlain(*rows)) {
      const AxisList& list = at == HaloAt::kTo ? to.split[d] : from.split[d];
      std::vector<RowNeeds>& needs_by_rank = shares.halos[d - 1];
      needs_by_rank = at == HaloAt::kTo ? ToHalo(*rows, cut) : FromHalo(*rows, cut);
      shares.axes |= SetOf(list);
      const bool moves = std::any_of(needs_by_rank.begin(), needs_by_rank.end(),
                                     [](const RowNeeds& r) { return r.needs > r.has; });
      if (moves) shares.changes = shares.packed = shares.unpacked = true;
    } else {
      shares.needs *= whole.extent[d] / cut.to_parts;
      if (!cut.misaligned()) shares.has *= whole.extent[d] / std::max(cut.from_parts, cut.to_parts);
      shares.in_peers *= OverlappingParts(cut.from_beyond, cut.to_beyond);
    }
    // A rank sends its part to the peers whose new part overlaps it.
    shares.sends *= whole.extent[d] / (cut.misaligned() || cut.to_beyond == 1
                                           ? cut.from_parts
                                           : cut.to_parts / cut.to_beyond * cut.outside);
    shares.out_peers *=
        std::min(cut.to_beyond / cut.outside, OverlappingParts(cut.to_beyond, cut.from_beyond));
  }
  return shares.Busiest(at == HaloAt::kFrom);
}

MoveEstimate MoveModel::Estimate(const Exchanged& exchanged) const {
  MoveEstimate estimate{.elements = exchanged.received};
  estimate.seconds = hardware_.copy_seconds * exchanged.copied;
  const double busier = std::max(exchanged.received, exchanged.sent);
  if (busier <= 0) return estimate;
  const LinkProfile& link = LinkOf(exchanged.axes);
  const double messages = std::max(exchanged.in_messages, exchanged.out_messages);
  const double latencies = exchanged.all_to_all ? messages : Doublings(1 + messages);
  estimate.seconds += link.alpha * latencies + kBytesPerWord * link.beta * busier +
                      kBytesPerWord * link.gamma * exchanged.added;
  return estimate;
}

MoveEstimate MoveModel::Move(const Extents& whole, const CompactLayout& from,
                             const CompactLayout& to, const Halo& halo, HaloAt at) const {
  if (at == HaloAt::kNone && from == to && from.partial == 0) return {};
  const Exchanged direct = Exchange(whole, from, to, halo, at);
  const AxisSet summed = from.partial & ~SplittingAxes(to);
  if (summed == 0) return Estimate(direct);
  const MoveCost cost;
  double minimum = direct.Cost(cost);
  Exchanged best[2] = {direct, {}};
  const double ranks = compact_.Ranks(summed);
  for (int d = 0; d < whole.count; ++d) {
    // A dimension cannot have more parts than elements.
    if (whole.extent[d] < compact_.Ranks(to.split[d]) * ranks) continue;
    CompactLayout between = to;
    for (int a = 0; a < compact_.axes(); ++a) {
      if ((summed >> a & 1) != 0) between.split[d].push_back(a);
    }
    const Exchanged first =
        Exchange(whole, from, between, halo, at == HaloAt::kFrom ? HaloAt::kFrom : HaloAt::kNone);
    const Exchanged second =
        Exchange(whole, between, to, halo, at == HaloAt::kTo ? HaloAt::kTo : HaloAt::kNone);
    const double both = first.Cost(cost) + second.Cost(cost);
    if (both >= minimum) continue;
    minimum = both;
    best[0] = first;
    best[1] = second;
  }
  MoveEstimate estimate = Estimate(best[0]);
  estimate += Estimate(best[1]);
  return estimate;
}

MoveEstimate MoveModel::Forward(const Extents& whole, const CompactLayout& from,
                                const CompactLayout& to, const Halo& halo) const {
  return Move(whole, from, to, halo, halo.needed ? HaloAt::kTo : HaloAt::kNone);
}

MoveEstimate MoveModel::Backward(const Extents& whole, const CompactLayout& from,
                                 const CompactLayout& to, const Halo& halo) const {
  return Move(whole, from, to, halo, halo.needed ? HaloAt::kFrom : HaloAt::kNone);
}

std::vector<LayerMoves> MovesOf(const PlanProblem& problem, const Plan& plan) {
  const Graph& graph = *problem.graph;
  const MoveModel model(plan.mesh, problem.hardware);
  const CompactMesh& mesh = model.mesh();
  const std::vector<bool> needs_gradient = LayersWithGradient(graph);
  const CompactLayout given = mesh.Compact(InputLayout(graph, plan));
  const double samples = 1.0 * problem.batch / problem.micro_batches;
  const std::vector<RecomputedLayer> recomputed =
      RecomputedLayers(graph, plan.recomputed, plan.layers);
  std::vector<LayerMoves> moves(graph.size());
  for (int l = 0; l < graph.size(); ++l) {
    const GraphLayer& layer = graph[l];
    const LayerLayouts& layouts = plan.layers[l];
    const Halo halo = HaloOf(layer);
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      const int producer = layer.inputs[i];
      const Extents whole = ExtentsOf(samples, layer.input_shapes[i]);
      CompactLayout from = given;
      if (producer != Graph::kInput) {
        from = mesh.Compact(plan.layers[producer].output);
      }
      const MoveEstimate to_input =
          model.Forward(whole, from, mesh.Compact(layouts.inputs[i]), halo);
      moves[l].forward += to_input;
      if (recomputed[l].inputs) moves[l].backward += to_input;
      if (producer == Graph::kInput || !needs_gradient[producer]) continue;
      from.partial = 0;
      moves[l].backward +=
          model.Backward(whole, mesh.Compact(layouts.input_gradients[i]), from, halo);
    }
  }
  return moves;
}

}  // namespace cadre
