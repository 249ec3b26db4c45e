#include "coordinator/plan/move_words.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "spec/tape.h"
#include "tensor/move.h"

namespace cadre {
namespace {

constexpr double kBytesPerWord = 4;

// Two ways to cut one dimension.
struct DimensionCut {
  // Parts, and those that one of the same part of what both cut alike has.
  double from_parts = 1;
  double to_parts = 1;
  double from_beyond = 1;
  double to_beyond = 1;
  // Of to_beyond, ranks that are not in the group of those who exchange.
  double outside = 1;

  // Somebody's part before has nothing of its part after.
  bool apart() const { return from_beyond > 1 && to_beyond > 1; }
  bool same() const { return from_beyond == 1 && to_beyond == 1; }
};

// Parts of a cut into `a` that a part of a cut into `b` may touch.
double Touched(double a, double b) {
  if (b == 1) return a;
  if (a == 1) return 1;
  const auto common =
      static_cast<double>(std::gcd(static_cast<int64_t>(a), static_cast<int64_t>(b)));
  const double a_part = a / common;
  const double b_part = b / common;
  return std::ceil((b_part - 1 + a_part) / b_part);
}

DimensionCut CutOf(const CompactMesh& mesh, const AxisList& from, const AxisList& to,
                   AxisSet group) {
  DimensionCut cut;
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

// What one rank needs and has of one dimension, in elements of it.
struct Reach {
  // Summed over those who have some of it.
  double needs = 0;
  double has = 0;
  double peers = 1;
};

struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

int64_t Common(const Span& a, const Span& b) {
  return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

Span PartOf(int64_t n, int64_t i, int64_t parts) {
  return {PartBegin(n, i, parts), PartBegin(n, i + 1, parts)};
}

// What part i of the output needs of the input.
Span Needed(const WindowRows& rows, int64_t i, int64_t parts) {
  const Span out = PartOf(rows.out, i, parts);
  const Span in = PartOf(rows.in, i, parts);
  if (parts == 1) return in;
  if (out.begin >= out.end) return {in.begin, in.begin};
  const int64_t begin = std::clamp<int64_t>(out.begin * rows.stride - rows.padding, 0, rows.in);
  const int64_t end =
      std::clamp<int64_t>((out.end - 1) * rows.stride - rows.padding + rows.reach, begin, rows.in);
  return {begin, end};
}

// A part that is not behind the one that has this element.
int64_t PartAt(int64_t n, int64_t element, int64_t parts) {
  return std::max<int64_t>(0, element * parts / n - 1);
}

// A part of the output that is not behind the first that needs this element of the input.
int64_t FirstThatNeeds(const WindowRows& rows, int64_t element, int64_t parts) {
  const int64_t first = (element + rows.padding - rows.reach) / rows.stride;
  return PartAt(rows.out, std::clamp<int64_t>(first, 0, rows.out), parts);
}

// Pairs of parts, widened and plain, that one rank has: of cuts of which one goes on where the
// other ends, or all where neither does.
template <typename Visit>
void ForPairs(int64_t wide, int64_t plain, bool apart, Visit visit) {
  if (apart) {
    for (int64_t i = 0; i < wide; ++i) visit(i, int64_t{-1});
  } else if (wide >= plain) {
    for (int64_t i = 0; i < wide; ++i) visit(i, i / (wide / plain));
  } else {
    for (int64_t j = 0; j < plain; ++j) visit(j / (plain / wide), j);
  }
}

// From plain parts to parts with their halos.
std::vector<Reach> ToHalo(const WindowRows& rows, const DimensionCut& cut) {
  std::vector<Reach> reaches;
  const auto parts = static_cast<int64_t>(cut.from_parts);
  reaches.reserve(static_cast<size_t>(std::max(cut.from_parts, cut.to_parts)));
  ForPairs(static_cast<int64_t>(cut.to_parts), parts, cut.apart(), [&](int64_t i, int64_t j) {
    const Span needed = Needed(rows, i, static_cast<int64_t>(cut.to_parts));
    Reach reach{.needs = static_cast<double>(needed.end - needed.begin), .peers = 0};
    for (int64_t p = PartAt(rows.in, needed.begin, parts); p < parts; ++p) {
      const Span part = PartOf(rows.in, p, parts);
      if (part.begin >= needed.end) break;
      if (Common(needed, part) > 0) ++reach.peers;
    }
    if (j >= 0) reach.has = static_cast<double>(Common(needed, PartOf(rows.in, j, parts)));
    reaches.push_back(reach);
  });
  return reaches;
}

// From parts with their halos, which are addends where they overlap, to plain parts.
std::vector<Reach> FromHalo(const WindowRows& rows, const DimensionCut& cut) {
  std::vector<Reach> reaches;
  reaches.reserve(static_cast<size_t>(std::max(cut.from_parts, cut.to_parts)));
  const auto wide = static_cast<int64_t>(cut.from_parts);
  const auto plain = static_cast<int64_t>(cut.to_parts);
  const auto reach_of = [&](const Span& part, const Span* own) {
    Reach reach{.peers = 0};
    for (int64_t i = FirstThatNeeds(rows, part.begin, wide); i < wide; ++i) {
      const Span needed = Needed(rows, i, wide);
      if (needed.begin >= part.end) break;
      const auto common = static_cast<double>(Common(needed, part));
      reach.needs += common;
      if (common > 0) ++reach.peers;
    }
    if (own != nullptr) reach.has = static_cast<double>(Common(*own, part));
    return reach;
  };
  if (cut.apart()) {
    for (int64_t j = 0; j < plain; ++j) {
      reaches.push_back(reach_of(PartOf(rows.in, j, plain), nullptr));
    }
    return reaches;
  }
  ForPairs(wide, plain, false, [&](int64_t i, int64_t j) {
    const Span own = Needed(rows, i, wide);
    reaches.push_back(reach_of(PartOf(rows.in, j, plain), &own));
  });
  return reaches;
}

AxisSet DifferingAxes(const CompactLayout& from, const CompactLayout& to) {
  AxisSet differ = from.partial;
  for (size_t d = 0; d < kMostDimensions; ++d) {
    if (from.split[d] == to.split[d]) continue;
    differ |= SetOf(from.split[d]) | SetOf(to.split[d]);
  }
  return differ;
}

int Doublings(double members) { return static_cast<int>(std::ceil(std::log2(members) - 1e-9)); }

// The rows or columns of a halo that stands in this dimension.
const WindowRows* HaloIn(const Halo& halo, size_t dimension) {
  if (dimension == Halo::kRowDimension) return &halo.rows;
  if (dimension == Halo::kColumnDimension) return &halo.columns;
  return nullptr;
}

bool IsPlain(const WindowRows& rows) {
  return rows.reach == 1 && rows.stride == 1 && rows.padding == 0;
}

}  // namespace

MoveEstimate& MoveEstimate::operator+=(const MoveEstimate& other) {
  words += other.words;
  seconds += other.seconds;
  return *this;
}

Halo HaloOf(const GraphLayer& layer) {
  Halo halo;
  if (layer.kind != LayerKind::kConvolution && layer.kind != LayerKind::kMaxPool &&
      layer.kind != LayerKind::kAveragePool) {
    return halo;
  }
  const Window& window = layer.window;
  halo.rows = {layer.input()[0], layer.output[0], window.reach_height(), window.stride,
               window.padding_height};
  halo.columns = {layer.input()[1], layer.output[1], window.reach_width(), window.stride,
                  window.padding_width};
  halo.wanted = !IsPlain(halo.rows) || !IsPlain(halo.columns);
  return halo;
}

// One exchange, on the rank that has most to do.
struct MoveModel::Exchanged {
  double received = 0;
  double sent = 0;
  double in_messages = 0;
  double out_messages = 0;
  double copied = 0;
  double added = 0;
  // Everybody gives up a part of one dimension for a part of another: an all-to-all.
  bool trades = false;
  AxisSet axes = 0;

  // As tensor/move.h weighs it.
  double Cost(const MoveCost& cost) const {
    return std::max(in_messages * cost.words_per_message + received,
                    out_messages * cost.words_per_message + sent);
  }
};

MoveModel::MoveModel(const Mesh& mesh, const GroupMachine& machine)
    : mesh_(mesh), compact_(mesh), machine_(machine) {}

const LinkProfile& MoveModel::LinkOf(AxisSet axes) const {
  const LinkProfile*& link = links_[axes];
  if (link == nullptr) link = &machine_.LinkOf(mesh_, compact_.Names(axes));
  return *link;
}

MoveModel::Exchanged MoveModel::Exchange(const Extents& whole, const CompactLayout& from,
                                         const CompactLayout& to, const Halo& halo,
                                         HaloAt at) const {
  const AxisSet group = PlacingAxes(from) | from.partial;
  const double addends = compact_.Ranks(from.partial);
  // Products over the dimensions without a halo: what a rank needs, has, and sends of its own.
  double needs = 1, has = 1, sends = 1;
  double in_peers = addends;
  double out_peers = compact_.Ranks(group & ~PlacingAxes(to));
  const double copies = out_peers;
  bool apart = false;
  // Messages that are no run of what they come from, or go to.
  bool packed = false, unpacked = addends > 1;
  bool changes = addends > 1;
  bool cuts = false, joins = false;
  AxisSet axes = DifferingAxes(from, to);
  static constexpr Reach kNothing = {.needs = 1, .has = 1, .peers = 1};
  std::vector<Reach> halos[2];  // of rows and columns
  for (int dimension = 0; dimension < whole.count; ++dimension) {
    const auto d = static_cast<size_t>(dimension);
    const DimensionCut cut = CutOf(compact_, from.split[d], to.split[d], group);
    apart = apart || cut.apart();
    changes = changes || !cut.same();
    cuts = cuts || cut.to_beyond > 1;
    joins = joins || cut.from_beyond > 1;
    if (d > 0) {
      packed = packed || cut.to_beyond > 1;
      unpacked = unpacked || cut.from_beyond > 1;
    }
    const double parts = at == HaloAt::kTo ? cut.to_parts : cut.from_parts;
    const WindowRows* rows = at == HaloAt::kNone ? nullptr : HaloIn(halo, d);
    if (rows != nullptr && parts > 1 && !IsPlain(*rows)) {
      const AxisList& list = at == HaloAt::kTo ? to.split[d] : from.split[d];
      std::vector<Reach>& reaches = halos[d - 1];
      reaches = at == HaloAt::kTo ? ToHalo(*rows, cut) : FromHalo(*rows, cut);
      axes |= SetOf(list);
      const bool moves = std::any_of(reaches.begin(), reaches.end(),
                                     [](const Reach& r) { return r.needs > r.has; });
      if (moves) changes = packed = unpacked = true;
    } else {
      needs *= whole.extent[d] / cut.to_parts;
      if (!cut.apart()) has *= whole.extent[d] / std::max(cut.from_parts, cut.to_parts);
      in_peers *= Touched(cut.from_beyond, cut.to_beyond);
    }
    // What it has is wanted by those of its group whose parts after touch its part before.
    sends *= whole.extent[d] / (cut.apart() || cut.to_beyond == 1
                                    ? cut.from_parts
                                    : cut.to_parts / cut.to_beyond * cut.outside);
    out_peers *= std::min(cut.to_beyond / cut.outside, Touched(cut.to_beyond, cut.from_beyond));
  }
  Exchanged exchanged{.trades = cuts && joins, .axes = axes};
  if (!changes) return exchanged;
  const auto reaches_of = [&](const std::vector<Reach>& halo_reaches) {
    return halo_reaches.empty() ? std::span<const Reach>(&kNothing, 1) : halo_reaches;
  };
  double own = 0;
  for (const Reach& row : reaches_of(halos[0])) {
    for (const Reach& column : reaches_of(halos[1])) {
      const double here = apart ? 0 : has * row.has * column.has;
      const double words = needs * addends * row.needs * column.needs - here;
      const double peers = in_peers * row.peers * column.peers - (here > 0 ? 1 : 0);
      exchanged.received = std::max(exchanged.received, words);
      exchanged.in_messages = std::max(exchanged.in_messages, peers);
      own = std::max(own, here);
    }
  }
  const bool has_halo = !halos[0].empty() || !halos[1].empty();
  if (has_halo) {
    // Neighbours send one another the same.
    exchanged.sent = exchanged.received;
    exchanged.out_messages = exchanged.in_messages;
  } else {
    exchanged.sent = std::max(0.0, sends * copies - own);
    exchanged.out_messages = std::max(0.0, out_peers - (own > 0 ? 1 : 0));
  }
  exchanged.copied = own + (packed ? exchanged.sent : 0) + (unpacked ? exchanged.received : 0);
  if (addends > 1 || (has_halo && at == HaloAt::kFrom)) exchanged.added = exchanged.received;
  return exchanged;
}

MoveEstimate MoveModel::Estimate(const Exchanged& exchanged) const {
  MoveEstimate estimate{.words = exchanged.received};
  estimate.seconds = machine_.copy_seconds * exchanged.copied;
  const double busier = std::max(exchanged.received, exchanged.sent);
  if (busier <= 0) return estimate;
  const LinkProfile& link = LinkOf(exchanged.axes);
  const double messages = std::max(exchanged.in_messages, exchanged.out_messages);
  const double waits = exchanged.trades ? messages : Doublings(1 + messages);
  estimate.seconds += link.alpha * waits + kBytesPerWord * link.beta * busier +
                      kBytesPerWord * link.gamma * exchanged.added;
  return estimate;
}

MoveEstimate MoveModel::Move(const Extents& whole, const CompactLayout& from,
                             const CompactLayout& to, const Halo& halo, HaloAt at) const {
  if (at == HaloAt::kNone && from == to && from.partial == 0) return {};
  const Exchanged direct = Exchange(whole, from, to, halo, at);
  const AxisSet summed = from.partial & ~PlacingAxes(to);
  if (summed == 0) return Estimate(direct);
  const MoveCost cost;
  double least = direct.Cost(cost);
  Exchanged best[2] = {direct, {}};
  const double ranks = compact_.Ranks(summed);
  for (int dimension = 0; dimension < whole.count; ++dimension) {
    const auto d = static_cast<size_t>(dimension);
    // Finer than elements nobody can cut.
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
    if (both >= least) continue;
    least = both;
    best[0] = first;
    best[1] = second;
  }
  MoveEstimate estimate = Estimate(best[0]);
  estimate += Estimate(best[1]);
  return estimate;
}

MoveEstimate MoveModel::Forward(const Extents& whole, const CompactLayout& from,
                                const CompactLayout& to, const Halo& halo) const {
  return Move(whole, from, to, halo, halo.wanted ? HaloAt::kTo : HaloAt::kNone);
}

MoveEstimate MoveModel::Backward(const Extents& whole, const CompactLayout& from,
                                 const CompactLayout& to, const Halo& halo) const {
  return Move(whole, from, to, halo, halo.wanted ? HaloAt::kFrom : HaloAt::kNone);
}

MoveEstimate MoveBetween(const Shape& whole, const Mesh& mesh, const Layout& from, const Layout& to,
                         const GroupMachine& machine) {
  const MoveModel model(mesh, machine);
  Extents extents{.count = whole.rank()};
  for (int d = 0; d < whole.rank(); ++d) {
    extents.extent[static_cast<size_t>(d)] = static_cast<double>(whole[d]);
  }
  return model.Forward(extents, model.mesh().Compact(from), model.mesh().Compact(to), Halo());
}

std::vector<LayerMoves> MovesOf(const PlanProblem& problem, const Plan& plan) {
  const Graph& graph = *problem.graph;
  const MoveModel model(plan.mesh, problem.machine);
  const CompactMesh& mesh = model.mesh();
  const std::vector<bool> learns = LayersWithGradient(graph);
  const CompactLayout given = mesh.Compact(InputLayout(graph, plan));
  const double samples = static_cast<double>(problem.batch) / problem.micro_batches;
  std::vector<LayerMoves> moves(static_cast<size_t>(graph.size()));
  for (int l = 0; l < graph.size(); ++l) {
    const GraphLayer& layer = graph[l];
    const LayerLayouts& layouts = plan.layers[static_cast<size_t>(l)];
    const Halo halo = HaloOf(layer);
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      const int producer = layer.inputs[i];
      const Extents whole = ExtentsOf(samples, layer.input_shapes[i]);
      CompactLayout from = given;
      if (producer != Graph::kInput) {
        from = mesh.Compact(plan.layers[static_cast<size_t>(producer)].output);
      }
      LayerMoves& of = moves[static_cast<size_t>(l)];
      of.forward += model.Forward(whole, from, mesh.Compact(layouts.inputs[i]), halo);
      if (producer == Graph::kInput || !learns[static_cast<size_t>(producer)]) continue;
      from.partial = 0;
      of.backward += model.Backward(whole, mesh.Compact(layouts.input_gradients[i]), from, halo);
    }
  }
  return moves;
}

}  // namespace cadre
