#include "tensor/move.h"

#include <algorithm>
#include <utility>

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

// Up to this many ranks a candidate's cost is that of its busiest rank; beyond, that of the busier
// of the first rank and the last, which are those that differ most where splits are uneven.
constexpr int kRanksAsked = 64;

bool Contains(const Axes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Axes that the layout splits something over, or places something on.
Axes PlacingAxes(const Layout& layout) {
  Axes axes;
  for (const Axes& split : layout.split) axes.insert(axes.end(), split.begin(), split.end());
  for (const Layout::Coordinate& place : layout.only) axes.push_back(place.axis);
  return axes;
}

// Elements and not corners: all empty boxes are alike.
bool SameElements(const Box& a, const Box& b) { return a == b || (a.empty() && b.empty()); }

// An exchange as all ranks see it.
struct Step {
  // The members of a rank's group differ along these.
  Axes axes;
  // By rank.
  std::vector<Box> have;
  std::vector<Box> make;
  // Whether the rank gets what it makes; zeros otherwise.
  std::vector<bool> takes;
  // No two members of a group have an element in common.
  bool disjoint = false;

  // What goes from one rank to another.
  Box Message(int from, int to) const {
    const Box& source = have[static_cast<size_t>(from)];
    const Box& target = make[static_cast<size_t>(to)];
    if (takes[static_cast<size_t>(to)]) return Intersect(source, target);
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

  // The steps of the cheapest way; none where nothing changes on any rank.
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
    part.sums = Sums(step, part.members);
    return part;
  }

 private:
  bool StaysPartial(const std::string& axis) const { return Contains(still_partial_, axis); }

  // Those who differ along an axis that does not place the tensor, or that it stays a partial sum
  // over, have nothing to tell one another.
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
    // The parts of a layout do not overlap, unless they are addends.
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

  // Axes over which the tensor is summed and then wanted by all.
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

  // As `to`, but of every part each of the ranks that sum it has its own part, along `dim`.
  Layout Between(int dim, const Axes& summed) const {
    Layout layout = to_.layout;
    layout.partial_sum = still_partial_;
    const auto d = static_cast<size_t>(dim);
    if (layout.split.size() <= d) layout.split.resize(d + 1);
    layout.split[d].insert(layout.split[d].end(), summed.begin(), summed.end());
    return layout;
  }

  Exchange MessagesOf(const Step& step, int rank) const {
    Exchange part{.members = mesh_.Peers(rank, step.axes),
                  .have = step.have[static_cast<size_t>(rank)],
                  .make = step.make[static_cast<size_t>(rank)]};
    for (int peer = 0; peer < static_cast<int>(part.members.size()); ++peer) {
      const int other = part.members[static_cast<size_t>(peer)];
      if (other == rank) part.index = peer;
      Box out = step.Message(rank, other);
      if (!out.empty()) part.sends.push_back({peer, std::move(out)});
      Box in = step.Message(other, rank);
      if (!in.empty()) part.receives.push_back({peer, std::move(in)});
    }
    return part;
  }

  static bool Sums(const Step& step, const std::vector<int>& members) {
    if (step.disjoint) return false;
    for (size_t a = 0; a < members.size(); ++a) {
      for (size_t b = a + 1; b < members.size(); ++b) {
        const Box common = Intersect(step.have[static_cast<size_t>(members[a])],
                                     step.have[static_cast<size_t>(members[b])]);
        if (common.empty()) continue;
        for (const int to : members) {
          const auto t = static_cast<size_t>(to);
          if (step.takes[t] && !Intersect(common, step.make[t]).empty()) return true;
        }
      }
    }
    return false;
  }

  // Of one way: of messages out or in, whichever takes longer.
  double Seconds(const Exchange& part, const MoveCost& cost) const {
    const auto one_way = [&](const std::vector<Exchange::Message>& messages, int64_t words) {
      const auto others = std::count_if(messages.begin(), messages.end(),
                                        [&](const auto& m) { return m.peer != part.index; });
      return static_cast<double>(others) * cost.words_per_message + static_cast<double>(words);
    };
    return std::max(one_way(part.sends, part.words_sent()),
                    one_way(part.receives, part.words_received()));
  }

  double Seconds(const std::vector<Step>& steps, const MoveCost& cost) const {
    const int ranks = mesh_.ranks();
    const int stride = ranks <= kRanksAsked ? 1 : ranks - 1;
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
  // Axes over which the tensor is a partial sum before and after: each addend moves for itself.
  Axes still_partial_;
};

int64_t WordsToOthers(const std::vector<Exchange::Message>& messages, int self) {
  int64_t words = 0;
  for (const Exchange::Message& message : messages) {
    if (message.peer != self) words += message.box.shape().elements();
  }
  return words;
}

}  // namespace

Placement Placement::Of(const Shape& shape, const Layout& layout, const Mesh& mesh) {
  return {layout, [shape, layout, mesh](int rank) { return LocalBox(shape, layout, mesh, rank); }};
}

int64_t Exchange::words_sent() const { return WordsToOthers(sends, index); }

int64_t Exchange::words_received() const { return WordsToOthers(receives, index); }

bool Exchange::is_identity() const {
  const auto to_self = [&](const Message& message) { return message.peer == index; };
  if (!std::all_of(sends.begin(), sends.end(), to_self)) return false;
  if (make.empty()) return have.empty();
  return have == make && receives.size() == 1 && to_self(receives[0]) && receives[0].box == make;
}

int64_t Move::words_sent() const {
  int64_t words = 0;
  for (const Exchange& step : steps) words += step.words_sent();
  return words;
}

int64_t Exchange::packed_words() const {
  int64_t words = 0;
  for (const Message& message : sends) {
    if (message.peer == index || RunIn(message.box, have).has_value()) continue;
    words += message.box.shape().elements();
  }
  return words;
}

int64_t Exchange::unpacked_words() const {
  int64_t words = 0;
  for (const Message& message : receives) {
    if (message.peer != index && !arrives_in_place(message))
      words += message.box.shape().elements();
  }
  return words;
}

bool Exchange::arrives_in_place(const Message& message) const {
  return message.peer != index && !sums && RunIn(message.box, make).has_value();
}

int64_t Move::scratch_words() const {
  int64_t words = 0;
  for (size_t s = 0; s + 1 < steps.size(); ++s) {
    words = std::max(words, steps[s].make.shape().elements());
  }
  return words;
}

Move PlanMove(const Shape& shape, const Mesh& mesh, int rank, const Placement& from,
              const Placement& to, const MoveCost& cost) {
  const Planner planner(shape, mesh, from, to);
  Move move;
  for (const Step& step : planner.Choose(cost)) move.steps.push_back(planner.PartOf(step, rank));
  return move;
}

}  // namespace cadre
