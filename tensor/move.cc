// Redistribution of a tensor over the ranks of a mesh.
//
// Idea. A layout and a mesh determine, on every rank, the boxes that all ranks have and need. The
// message from rank a to rank b is the intersection of the box that a has with the box that b
// needs. All ranks compute from equal values, so both ends of a message agree on its contents
// without any negotiation, as in GSPMD (Xu et al. 2021). One rule covers four operations: a reshard
// (boxes of two layouts), a halo (the needed box is wider than the owned one), the gradient of a
// halo (messages of several ranks overlap and are added), and the reduction of a partial sum (every
// rank has the whole box, as an addend).
//
// Groups. Here a group is a set of ranks that exchange messages. Ranks that differ only along an
// axis that neither splits nor sums the tensor hold copies. Each copy is redistributed within its
// own group (GroupAxes), so replication causes no traffic. The same applies to axes over which the
// tensor is a partial sum before and after the move.
//
// One or two exchanges. If all n ranks of a partial sum need the result, every rank sends the box n
// - 1 times in a single exchange. A reduce-scatter followed by an all-gather sends 2 (n - 1) / n
// times the box, with twice as many messages (Thakur, Rabenseifner, Gropp 2005). Choose() compares
// the single exchange with such a pair for each dimension in which the intermediate tensor can be
// split.
//
// Coordinates. If a tensor exists at some coordinates of an axis only (Layout::at), the ranks
// elsewhere are members of the group with empty boxes, so the same rule sends it to other
// coordinates. Such a group is divided into the parts whose members have messages for one another
// (Connected): a rank without messages takes no part in the exchange.
//
// Invariants. Within a group every element of a result receives at least one message, and exactly
// one unless `sums` is set. Addends are added in the order of the members, which is equal on all
// ranks: results are bitwise equal on all ranks and in all runs.
//
// Cost. Planning is O(g) boxes for one rank of a group of g, and O(g^3) to detect sums. The cost of
// a candidate is the cost of the busiest rank. For more than kMaxCostedRanks ranks only the first
// and the last are compared, which differ most if splits are uneven.
//
// Limits. Within an exchange every pair communicates directly; there is no tree or ring. The
// intermediate tensor is split in one dimension only.
#include "tensor/move.h"

#include <algorithm>
#include <utility>

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

constexpr int kMaxCostedRanks = 64;

bool Contains(const Axes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Axes that determine which elements a rank holds.
Axes PlacingAxes(const Layout& layout) {
  Axes axes;
  for (const AxisCoordinate& each : layout.at) axes.push_back(each.axis);
  for (const Axes& split : layout.split) axes.insert(axes.end(), split.begin(), split.end());
  return axes;
}

// Whether two boxes have the same elements; all empty boxes do.
bool SameElements(const Box& a, const Box& b) { return a == b || (a.empty() && b.empty()); }

// An exchange as all ranks see it.
struct Step {
  // The axes along which the members of a group differ.
  Axes axes;
  // By rank.
  std::vector<Box> have;
  std::vector<Box> make;
  // By rank: whether the rank gets its box; if not, it gets zeros.
  std::vector<bool> takes;
  // Whether the boxes of the members of a group do not overlap.
  bool disjoint = false;

  // The message from one rank to another.
  Box Message(int from, int to) const {
    const Box& source = have[from];
    const Box& target = make[to];
    if (takes[to]) return Intersect(source, target);
    return {target.begin, target.begin};
  }
};

class Planner {
 public:
  Planner(const Shape& shape, const Mesh& mesh, const Placement& from, const Placement& to)
      : shape_(shape), mesh_(mesh), from_(from), to_(to) {
    for (const std::string& axis : from.layout.partial_sum) {
      if (Contains(to.layout.partial_sum, axis)) still_partial_.push_back(axis);
    }
  }

  // The steps of the cheapest move; none if nothing changes on any rank.
  std::vector<Step> Choose(const MoveCost& cost) const {
    std::vector<Step> best = {MakeStep(from_, to_)};
    if (IsIdentity(best.front())) return {};
    const Axes summed = SummedForSeveral();
    if (summed.empty()) return best;
    double best_seconds = Seconds(best, cost);
    for (int dim = 0; dim < shape_.rank(); ++dim) {
      const Placement between = Placement::Of(shape_, Between(dim, summed), mesh_);
      std::vector<Step> steps = {MakeStep(from_, between), MakeStep(between, to_)};
      const double seconds = Seconds(steps, cost);
      if (seconds >= best_seconds) continue;
      best_seconds = seconds;
      best = std::move(steps);
    }
    return best;
  }

  Exchange PartOf(const Step& step, int rank) const {
    Exchange part = MessagesOf(step, rank);
    if (!from_.layout.at.empty() || !to_.layout.at.empty()) KeepConnected(step, rank, part);
    part.sums = Sums(step, part.members);
    return part;
  }

 private:
  bool StaysPartial(const std::string& axis) const { return Contains(still_partial_, axis); }

  Axes GroupAxes(const Layout& from) const {
    const Axes placing = PlacingAxes(from);
    Axes group;
    for (const Mesh::Axis& axis : mesh_.axes()) {
      const bool summed = Contains(from.partial_sum, axis.name) && !StaysPartial(axis.name);
      if (axis.size > 1 && (summed || Contains(placing, axis.name))) group.push_back(axis.name);
    }
    return group;
  }

  bool Takes(const Layout& to, int rank) const {
    return std::all_of(to.partial_sum.begin(), to.partial_sum.end(), [&](const auto& axis) {
      return StaysPartial(axis) || mesh_.Coordinate(rank, axis) == 0;
    });
  }

  Step MakeStep(const Placement& from, const Placement& to) const {
    Step step{.axes = GroupAxes(from.layout)};
    // Boxes of a layout overlap within a group only if their values are addends.
    step.disjoint =
        std::all_of(from.layout.partial_sum.begin(), from.layout.partial_sum.end(),
                    [&](const auto& axis) { return StaysPartial(axis) || mesh_.Size(axis) == 1; });
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      step.have.push_back(from.box(rank));
      step.make.push_back(to.box(rank));
      step.takes.push_back(Takes(to.layout, rank));
      step.disjoint =
          step.disjoint && step.have.back() == LocalBox(shape_, from.layout, mesh_, rank);
    }
    return step;
  }

  bool IsIdentity(const Step& step) const {
    for (size_t rank = 0; rank < step.have.size(); ++rank) {
      if (!step.takes[rank] && !step.make[rank].empty()) return false;
      if (!SameElements(step.have[rank], step.make[rank])) return false;
    }
    if (step.disjoint) return true;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      for (const int peer : mesh_.Peers(rank, step.axes)) {
        if (peer != rank && !step.Message(peer, rank).empty()) return false;
      }
    }
    return true;
  }

  // Axes over which the tensor is summed and along which all ranks need the result.
  Axes SummedForSeveral() const {
    const Axes placing = PlacingAxes(to_.layout);
    Axes axes;
    for (const std::string& axis : from_.layout.partial_sum) {
      if (mesh_.Size(axis) > 1 && !StaysPartial(axis) && !Contains(placing, axis)) {
        axes.push_back(axis);
      }
    }
    return axes;
  }

  // `to`, with dimension `dim` also split over the axes of the sum.
  Layout Between(int dim, const Axes& summed) const {
    Layout layout = to_.layout;
    layout.partial_sum = still_partial_;
    if (std::ssize(layout.split) <= dim) layout.split.resize(dim + 1);
    layout.split[dim].insert(layout.split[dim].end(), summed.begin(), summed.end());
    return layout;
  }

  Exchange MessagesOf(const Step& step, int rank) const {
    Exchange part{
        .members = mesh_.Peers(rank, step.axes), .have = step.have[rank], .make = step.make[rank]};
    for (int peer = 0; peer < std::ssize(part.members); ++peer) {
      const int other = part.members[peer];
      if (other == rank) part.index = peer;
      Box out = step.Message(rank, other);
      if (!out.empty()) part.sends.push_back({peer, std::move(out)});
      Box in = step.Message(other, rank);
      if (!in.empty()) part.receives.push_back({peer, std::move(in)});
    }
    return part;
  }

  // The members that have messages for one another, directly or through others, and `rank`; in the
  // order of `members`.
  static std::vector<int> Connected(const Step& step, const std::vector<int>& members, int rank) {
    std::vector<bool> found(members.size(), false);
    std::vector<int> left = {rank};
    while (!left.empty()) {
      const int from = left.back();
      left.pop_back();
      for (size_t m = 0; m < members.size(); ++m) {
        if (members[m] == from) found[m] = true;
        if (found[m]) continue;
        if (step.Message(from, members[m]).empty() && step.Message(members[m], from).empty()) {
          continue;
        }
        found[m] = true;
        left.push_back(members[m]);
      }
    }
    std::vector<int> connected;
    for (size_t m = 0; m < members.size(); ++m) {
      if (found[m]) connected.push_back(members[m]);
    }
    return connected;
  }

  static void KeepConnected(const Step& step, int rank, Exchange& part) {
    const std::vector<int> connected = Connected(step, part.members, rank);
    const auto number = [&](int peer) -> int {
      return std::find(connected.begin(), connected.end(), part.members[peer]) - connected.begin();
    };
    for (Exchange::Message& message : part.sends) message.peer = number(message.peer);
    for (Exchange::Message& message : part.receives) message.peer = number(message.peer);
    part.index = number(part.index);
    part.members = connected;
  }

  static bool Sums(const Step& step, const std::vector<int>& members) {
    if (step.disjoint) return false;
    for (size_t a = 0; a < members.size(); ++a) {
      for (size_t b = a + 1; b < members.size(); ++b) {
        const Box common = Intersect(step.have[members[a]], step.have[members[b]]);
        if (common.empty()) continue;
        for (const int to : members) {
          if (step.takes[to] && !Intersect(common, step.make[to]).empty()) return true;
        }
      }
    }
    return false;
  }

  // The cost of sending or the cost of receiving, whichever is higher.
  double Seconds(const Exchange& part, const MoveCost& cost) const {
    const auto one_way = [&](const std::vector<Exchange::Message>& messages, int64_t elements) {
      const auto others = std::count_if(messages.begin(), messages.end(),
                                        [&](const auto& m) { return m.peer != part.index; });
      return others * cost.elements_per_message + elements;
    };
    return std::max(one_way(part.sends, part.elements_sent()),
                    one_way(part.receives, part.elements_received()));
  }

  double Seconds(const std::vector<Step>& steps, const MoveCost& cost) const {
    const int ranks = mesh_.ranks();
    const int stride = ranks <= kMaxCostedRanks ? 1 : ranks - 1;
    double sum = 0;
    for (const Step& step : steps) {
      double busiest = 0;
      for (int rank = 0; rank < ranks; rank += stride) {
        busiest = std::max(busiest, Seconds(MessagesOf(step, rank), cost));
      }
      sum += busiest;
    }
    return sum;
  }

  const Shape& shape_;
  const Mesh& mesh_;
  const Placement& from_;
  const Placement& to_;
  // Axes over which the tensor is a partial sum before and after the move.
  Axes still_partial_;
};

int64_t ElementsToOthers(const std::vector<Exchange::Message>& messages, int self) {
  int64_t elements = 0;
  for (const Exchange::Message& message : messages) {
    if (message.peer != self) elements += message.box.shape().elements();
  }
  return elements;
}

}  // namespace

Placement Placement::Of(const Shape& shape, const Layout& layout, const Mesh& mesh) {
  return {layout, [shape, layout, mesh](int rank) { return LocalBox(shape, layout, mesh, rank); }};
}

int64_t Exchange::elements_sent() const { return ElementsToOthers(sends, index); }

int64_t Exchange::elements_received() const { return ElementsToOthers(receives, index); }

bool Exchange::is_identity() const {
  const auto to_self = [&](const Message& message) { return message.peer == index; };
  if (!std::all_of(sends.begin(), sends.end(), to_self)) return false;
  if (make.empty()) return have.empty();
  return have == make && receives.size() == 1 && to_self(receives[0]) && receives[0].box == make;
}

bool Exchange::is_local() const {
  const auto to_self = [&](const Message& message) { return message.peer == index; };
  return std::all_of(sends.begin(), sends.end(), to_self) &&
         std::all_of(receives.begin(), receives.end(), to_self);
}

int64_t Move::elements_sent() const {
  int64_t elements = 0;
  for (const Exchange& step : steps) elements += step.elements_sent();
  return elements;
}

int64_t Exchange::packed_elements() const {
  int64_t elements = 0;
  for (const Message& message : sends) {
    if (message.peer == index || RunIn(message.box, have).has_value()) continue;
    elements += message.box.shape().elements();
  }
  return elements;
}

int64_t Exchange::unpacked_elements() const {
  int64_t elements = 0;
  for (const Message& message : receives) {
    if (message.peer == index || arrives_in_place(message)) continue;
    elements += message.box.shape().elements();
  }
  return elements;
}

bool Exchange::arrives_in_place(const Message& message) const {
  return message.peer != index && !sums && RunIn(message.box, make).has_value();
}

int64_t Move::scratch_elements() const {
  int64_t elements = 0;
  for (size_t s = 0; s + 1 < steps.size(); ++s) {
    elements = std::max(elements, steps[s].make.shape().elements());
  }
  return elements;
}

Move PlanMove(const Shape& shape, const Mesh& mesh, int rank, const Placement& from,
              const Placement& to, const MoveCost& cost) {
  const Planner planner(shape, mesh, from, to);
  Move move;
  for (const Step& step : planner.Choose(cost)) move.steps.push_back(planner.PartOf(step, rank));
  return move;
}

}  // namespace cadre
